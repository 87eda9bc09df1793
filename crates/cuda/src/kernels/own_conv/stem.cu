// The stem's 3x3 convolution of stride 2 over 3 channels: y(p, n) = sum over taps and k of x(2p + tap, k) w(n, tap, k),
// with x either 8 channels wide or bytes, then value / 255 in the operands' format.
//
// Reads x and writes y once. 640 x 640 -> 32 channels, batch 64: 420 MB + 420 MB, bound 0.233 ms (3.6 TB/s), with bytes
// 79 MB + 420 MB, 0.139 ms; 11.3 GFLOP, of which instructions do 3 times as much on zero channels. Measured on an H200,
// 2026-11-30: 0.297 ms, 0.174 ms with bytes.
//
// Weights stay in registers. A tap's 8 channels are one 8x8 matrix with 8 outputs' pixels; two taps make an instruction.

struct Args {
    StemInput x;
    u64 weights, y;
    u32 y_pitch;
    int h, w;
    u32 across, per_image, tiles;
};

// N outputs; tiles of 16 x 32 by 8 warps. A warp makes 32 channels (or all 16) of 2 rows of 8 pixels at a time.
template <int N, bool BYTES> __device__ __forceinline__ void stem(const Args& a) {
    constexpr int ROWS = 16, COLUMNS = 32, THREADS = 256;
    constexpr int NT = N < 32 ? N / 8 : 4, PARTS = N / (8 * NT);
    typedef StemTile<ROWS, COLUMNS> Tile;
    extern __shared__ uint4 shared[];
    const u32 base = shared_address(shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % PARTS, g = lane / 4, q = lane % 4;

    const T* weights = reinterpret_cast<const T*>(a.weights);
    // A lane's results of all NT tiles are neighbours: column c of tile j is channel 2 NT (c / 2) + 2j + c % 2.
    u32 b[9][NT];
#pragma unroll
    for (int tap = 0; tap < 9; tap++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            u32 output = part * (8 * NT) + 2 * NT * (g / 2) + 2 * j + g % 2;
            b[tap][j] = *reinterpret_cast<const u32*>(weights + (output * 9 + tap) * 8 + 2 * q);
        }
    // Lanes name pixels of two rows, and of two taps. The last tap stands alone.
    u32 taps[5];
#pragma unroll
    for (int i = 0; i < 5; i++)
        taps[i] = lane / 8 % 2 * (2 * Tile::PITCH) + lane % 8 * 16 +
                  (i < 4 && lane / 16 == 1 ? Tile::tap(2 * i + 1) : Tile::tap(2 * i));

    StemBytes<Tile, THREADS> bytes;
    auto start = [&](u32 tile, u32 stage) {
        u32 at = tile % a.per_image;
        int y = at / a.across * ROWS, x = at % a.across * COLUMNS;
        if constexpr (BYTES) {
            bytes.get(a.x, tile / a.per_image, y, x);
        } else {
            Tile::template copy<THREADS>(base + stage * Tile::BYTES, a.x, tile / a.per_image, y, x);
            close_copies();
        }
    };
    auto finish = [&](u32 stage) {
        if constexpr (BYTES) bytes.put(reinterpret_cast<u8*>(shared) + stage * Tile::BYTES);
    };
    start(blockIdx.x, 0);
    finish(0);
    u32 stage = 0;
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, stage ^= 1) {
        if constexpr (!BYTES) wait_copies();
        __syncthreads();
        const bool more = tile + gridDim.x < a.tiles;
        if (more) start(tile + gridDim.x, stage ^ 1);
        const u32 at = tile % a.per_image;
        const int top = at / a.across * ROWS, left = at % a.across * COLUMNS;
        T* image = reinterpret_cast<T*>(a.y) + tile / a.per_image * (u64(u32(a.h)) * u32(a.w)) * a.y_pitch;
        for (u32 item = warp / PARTS; item < ROWS / 2 * (COLUMNS / 8); item += THREADS / 32 / PARTS) {
            const u32 row = item / (COLUMNS / 8) * 2, column = item % (COLUMNS / 8) * 8;
            const u32 here = base + stage * Tile::BYTES + row * (2 * Tile::PITCH) + column * 16;
            float sums[NT][4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 r[4];
                load_matrices<false>(r, here + taps[i]);
#pragma unroll
                for (int j = 0; j < NT; j++) multiply(T{}, sums[j], r[0], r[1], r[2], r[3], b[2 * i][j], b[2 * i + 1][j]);
            }
            u32 r[2];
            load_matrices<false>(r, here + taps[4]);
#pragma unroll
            for (int j = 0; j < NT; j++) multiply(T{}, sums[j], r[0], r[1], b[8][j]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int oy = top + int(row) + i, ox = left + int(column + g);
                if (oy >= a.h || ox >= a.w) continue;
                T* to = image + u64(u32(oy * a.w + ox)) * a.y_pitch + part * (8 * NT) + 2 * NT * q;
                u32 v[NT];
#pragma unroll
                for (int j = 0; j < NT; j++) v[j] = pack(T{}, sums[j][2 * i], sums[j][2 * i + 1]);
                if constexpr (NT == 4)
                    store16(to, make_uint4(v[0], v[1], v[2], v[3]));
                else
                    store8(to, make_uint2(v[0], v[1]));
            }
        }
        if (more) finish(stage ^ 1);
    }
}

#define KERNEL(n)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 2) stem##n##_forward(Args a) { stem<n, false>(a); }    \
    extern "C" __global__ void __launch_bounds__(256, 2) stem##n##_forward_bytes(Args a) { stem<n, true>(a); }

KERNEL(16)
KERNEL(32)
KERNEL(64)
