// The stem's weight gradient: dw(n, tap, k) = sum over pixels of dy(p, n) x(2p + tap, k), x as in stem.cu. Each block
// sums some tiles; sum.cu adds the blocks up.
//
// Reads x and dy once. 640 x 640 -> 32 channels, batch 64: 420 MB + 420 MB, bound 0.233 ms (3.6 TB/s), with bytes
// 79 MB + 420 MB, 0.139 ms; 11.3 GFLOP, of which instructions do 2.7 times as much on zero channels. Measured on an H200,
// 2026-11-30: 0.285 ms, 0.173 ms with bytes.
//
// Pixels are what an instruction sums over: 8 of one row and 8 of the next, both operands turned round as they are
// loaded.

struct Args {
    StemInput x;
    u64 dy, partials;
    u32 dy_pitch;
    int h, w;
    u32 across, per_image, tiles;
};

// N outputs; tiles of ROWS x 16 by 4 warps, which share the pairs of rows and, of 64 outputs, halves.
template <int N, int ROWS, bool BYTES> __device__ __forceinline__ void stem_weight(const Args& a) {
    constexpr int COLUMNS = 16, THREADS = 128, UN = N / 8;
    constexpr int MT = N < 32 ? 1 : 2, PARTS = N / (16 * MT), SETS = 4 / PARTS;
    typedef StemTile<ROWS, COLUMNS> Tile;
    constexpr u32 Y_PITCH = COLUMNS * UN * 16, STAGE = Tile::BYTES + ROWS * Y_PITCH;
    extern __shared__ uint4 shared[];
    const u32 base = shared_address(shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, set = warp % SETS, part = warp / SETS;

    // Lanes name pixels of two rows, and of two taps. The last tap stands alone.
    u32 taps[5];
#pragma unroll
    for (int i = 0; i < 5; i++)
        taps[i] = lane / 8 % 2 * (2 * Tile::PITCH) + lane % 8 * 16 +
                  (i < 4 && lane / 16 == 1 ? Tile::tap(2 * i + 1) : Tile::tap(2 * i));

    StemBytes<Tile, THREADS> bytes;
    auto start = [&](u32 tile, u32 stage) {
        u32 at = tile % a.per_image, image = tile / a.per_image;
        int y = at / a.across * ROWS, x = at % a.across * COLUMNS;
        u32 to = base + stage * STAGE;
        if constexpr (BYTES)
            bytes.get(a.x, image, y, x);
        else
            Tile::template copy<THREADS>(to, a.x, image, y, x);
        const T* dy = reinterpret_cast<const T*>(a.dy) + u64(image) * u32(a.h) * u32(a.w) * a.dy_pitch;
        copy_tile<ROWS, COLUMNS, UN, THREADS>(to + Tile::BYTES, Source{dy, a.dy_pitch, a.h, a.w}, y, x);
        close_copies();
    };
    auto finish = [&](u32 stage) {
        if constexpr (BYTES) bytes.put(reinterpret_cast<u8*>(shared) + stage * STAGE);
    };
    start(blockIdx.x, 0);
    finish(0);
    float sums[9][MT][4] = {};
    u32 stage = 0;
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, stage ^= 1) {
        wait_copies();
        __syncthreads();
        const bool more = tile + gridDim.x < a.tiles;
        if (more) start(tile + gridDim.x, stage ^ 1);
        for (u32 pair = set; pair < ROWS / 2; pair += SETS) {
            const u32 x_row = base + stage * STAGE + pair * (4 * Tile::PITCH);
            const u32 y_row = base + stage * STAGE + Tile::BYTES + (2 * pair + lane / 16) * Y_PITCH;
#pragma unroll
            for (int strip = 0; strip < COLUMNS / 8; strip++) {
                u32 left[MT][4];
#pragma unroll
                for (int m = 0; m < MT; m++)
                    load_matrices<true>(
                        left[m], y_row + place<UN>(strip * 8 + lane % 8, part * (2 * MT) + 2 * m + lane / 8 % 2));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 r[4];
                    load_matrices<true>(r, x_row + strip * 128 + taps[i]);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        multiply(T{}, sums[2 * i][m], left[m][0], left[m][1], left[m][2], left[m][3], r[0], r[1]);
                        multiply(T{}, sums[2 * i + 1][m], left[m][0], left[m][1], left[m][2], left[m][3], r[2], r[3]);
                    }
                }
                u32 r[2];
                load_matrices<true>(r, x_row + strip * 128 + taps[4]);
#pragma unroll
                for (int m = 0; m < MT; m++)
                    multiply(T{}, sums[8][m], left[m][0], left[m][1], left[m][2], left[m][3], r[0], r[1]);
            }
        }
        if (more) finish(stage ^ 1);
    }

    // Sets one after the other into shared memory, then out.
    constexpr u32 WEIGHTS = N * 72;
    float* total = reinterpret_cast<float*>(shared);
    for (u32 turn = 0; turn < SETS; turn++) {
        __syncthreads();
        if (turn != set) continue;
#pragma unroll
        for (int tap = 0; tap < 9; tap++)
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 output = part * (16 * MT) + m * 16 + lane / 4 + i / 2 * 8;
                    float* to = total + (output * 9 + tap) * 8 + lane % 4 * 2 + i % 2;
                    *to = turn == 0 ? sums[tap][m][i] : *to + sums[tap][m][i];
                }
    }
    __syncthreads();
    float* partial = reinterpret_cast<float*>(a.partials) + u64(blockIdx.x) * WEIGHTS;
    for (u32 i = threadIdx.x; i < WEIGHTS / 4; i += THREADS)
        reinterpret_cast<float4*>(partial)[i] = reinterpret_cast<const float4*>(total)[i];
}

#define KERNEL(n, rows, blocks)                                                                                        \
    extern "C" __global__ void __launch_bounds__(128, blocks) stem##n##_weight(Args a) {                               \
        stem_weight<n, rows, false>(a);                                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, blocks) stem##n##_weight_bytes(Args a) {                         \
        stem_weight<n, rows, true>(a);                                                                                 \
    }

KERNEL(16, 16, 3)
KERNEL(32, 16, 3)
KERNEL(64, 8, 3)
