// The input of a stem in shared memory: 3x3 taps of stride 2 over 8 channels, of which bytes fill three.

struct StemInput {
    u64 at;
    u32 pitch;
    int h, w;
};

// The pixels under ROWS x COLUMNS outputs. A row holds its even columns and then its odd ones, so that neighbouring
// outputs' pixels are neighbours: column c lies at slot c / 2 + c % 2 * SLOTS.
template <int ROWS_, int COLUMNS_> struct StemTile {
    static constexpr int ROWS = 2 * ROWS_ + 1, COLUMNS = 2 * COLUMNS_ + 1;
    // A multiple of 4 but not of 8: even and odd neighbours lie in different banks.
    static constexpr int SLOTS = COLUMNS_ + 4;
    static_assert(COLUMNS_ % 8 == 0, "");
    static constexpr u32 PITCH = 2 * SLOTS * 16, BYTES = ROWS * PITCH;

    static __device__ __forceinline__ u32 slot(u32 column) { return (column / 2 + column % 2 * SLOTS) * 16; }
    // Where the pixel of a tap lies for the first output.
    static __device__ __forceinline__ constexpr u32 tap(int i) {
        return i / 3 * PITCH + (i % 3 / 2 + i % 3 % 2 * SLOTS) * 16;
    }

    // Starts copies of 8-channel pixels for the outputs from (y, x) on.
    template <int THREADS> static __device__ __forceinline__ void copy(u32 to, const StemInput& in, u32 image, int y, int x) {
        const T* from = reinterpret_cast<const T*>(in.at) + u64(image) * u32(in.h) * u32(in.w) * in.pitch;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
            u32 column = i % COLUMNS, row = i / COLUMNS;
            int iy = 2 * y - 1 + int(row), ix = 2 * x - 1 + int(column);
            bool inside = u32(iy) < u32(in.h) && u32(ix) < u32(in.w);
            copy16(to + row * PITCH + slot(column), from + (inside ? u64(u32(iy * in.w + ix)) * in.pitch : 0), inside);
        }
    }
};

// Bytes (n, h, w, 3) of such a tile on their way through registers: words of four pixels. Widths are multiples of 4 and
// the tile's first output column is even, so a group lies inside of the image or outside.
template <typename Tile, int THREADS> struct StemBytes {
    static constexpr int GROUPS = (Tile::COLUMNS + 3 + 3) / 4, ALL = Tile::ROWS * GROUPS;
    static constexpr int EACH = (ALL + THREADS - 1) / THREADS;
    u32 words[EACH][3];

    __device__ __forceinline__ void get(const StemInput& in, u32 image, int y, int x) {
        const u32* from = reinterpret_cast<const u32*>(in.at + u64(image) * u32(in.h) * u32(in.w) * 3);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            u32 at = i * THREADS + threadIdx.x, group = at % GROUPS, row = at / GROUPS;
            int iy = 2 * y - 1 + int(row), ix = 2 * x - 4 + int(group) * 4;
            bool inside = row < Tile::ROWS && u32(iy) < u32(in.h) && u32(ix) < u32(in.w);
            const u32* p = from + u64(u32(iy * in.w + ix) / 4) * 3;
#pragma unroll
            for (int k = 0; k < 3; k++) words[i][k] = inside ? __ldg(p + k) : 0;
        }
    }

    // Writes them as pixels of 8 channels, value / 255.
    __device__ __forceinline__ void put(u8* to) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            u32 at = i * THREADS + threadIdx.x, group = at % GROUPS, row = at / GROUPS;
            if (row >= Tile::ROWS) break;
#pragma unroll
            for (int p = 0; p < 4; p++) {
                // The group's first three pixels lie left of the tile's first column when it is the first group.
                int column = int(group) * 4 + p - 3;
                if (column < 0 || column >= Tile::COLUMNS) continue;
                u32 low = pack(T{}, value(i, 3 * p), value(i, 3 * p + 1)), high = pack(T{}, value(i, 3 * p + 2), 0.0f);
                *reinterpret_cast<uint4*>(to + row * Tile::PITCH + Tile::slot(column)) = make_uint4(low, high, 0, 0);
            }
        }
    }

    // Byte k of group i over 255: a byte below the mantissa of 2^23 is exact, and the product rounds to the same half as
    // the quotient for all 256 of them.
    __device__ __forceinline__ float value(int i, int k) const {
        u32 bits = __byte_perm(words[i][k / 4], 0x4B000000u, 0x7440u + k % 4);
        return (__uint_as_float(bits) - 8388608.0f) * (1.0f / 255.0f);
    }
};
