// Tiles of NHWC tensors in shared memory, and what kernels do with them.

// The format of operands: the file is compiled once for each.
typedef OPERAND T;

__device__ __forceinline__ void unpack(u32 r, float& first, float& second) {
    first = to_float(T{u16(r)});
    second = to_float(T{u16(r >> 16)});
}

// Where 16-byte unit `unit` of the pixel in column `column` lies in a tile row of UNITS units a pixel, in bytes. The
// order of units changes with the column such that any 8 neighbours' equal units lie in different banks.
template <int UNITS> __device__ __forceinline__ u32 place(u32 column, u32 unit) {
    static_assert(UNITS % 2 == 1 || UNITS == 2 || UNITS == 4 || UNITS == 6 || UNITS == 8, "");
    u32 turn = 0;
    if constexpr (UNITS == 2 || UNITS == 6) turn = (column >> 2) & 1;
    if constexpr (UNITS == 4) turn = (column >> 1) & 3;
    if constexpr (UNITS == 8) turn = column & 7;
    return (column * UNITS + (unit ^ turn)) * 16;
}

// A tensor of which units are copied: `at` is the first element of an image (and of a range of channels).
struct Source {
    const T* at;
    u32 pitch;
    int h, w;
};

// Starts copies of the ROWS x COLUMNS pixels from (y, x) on, zeros outside of the image.
template <int ROWS, int COLUMNS, int UNITS, int THREADS>
__device__ __forceinline__ void copy_tile(u32 to, const Source& from, int y, int x) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < ROWS * COLUMNS * UNITS; i += THREADS) {
        u32 unit = i % UNITS, pixel = i / UNITS, column = pixel % COLUMNS, row = pixel / COLUMNS;
        int iy = y + int(row), ix = x + int(column);
        bool inside = u32(iy) < u32(from.h) && u32(ix) < u32(from.w);
        u64 offset = inside ? u64(u32(iy * from.w + ix)) * from.pitch + unit * 8 : 0;
        copy16(to + row * (COLUMNS * UNITS * 16) + place<UNITS>(column, unit), from.at + offset, inside);
    }
}
