// 3x3 convolution of stride 1 over few channels, or in groups of 16, and its data gradient:
// y(p, n) = sum over taps and k of x(p + tap, k) w(n, tap, k), or dx(p, k) = sum of dy(p - tap, n) w(n, tap, k).
//
// Reads each input pixel about 1.3 times (halos, from L2) and writes each output pixel once. 32 -> 32 at 80 x 80, batch
// 64: 52 MB and 7.5 GFLOP, bound 14.5 us (3.6 TB/s; 12.6 us at 600 TFLOP/s). 64 -> 64 in 4 groups: 105 MB, 29 us.
// Measured on an H200, 2026-11-30, either pass: 32 us, and 39 us in groups.
//
// A block keeps the weights and walks over tiles; the next tile is copied while one is computed. A warp makes RW rows
// of 8 pixels, and each pair of rows that it loads serves the three taps above each other.

struct Args {
    u64 x, weights, y;
    u32 x_pitch, y_pitch;
    int h, w;
    // Tiles of an image across, of an image, and of all images.
    u32 across, per_image, tiles;
    u32 add;
};

// K channels in and N out in each of GROUPS groups. A warp makes RW rows of 8 pixels in N / SPLIT channels of a group; a
// tile is WY times as high and WX times as wide. DATA is the gradient: K counts the convolution's outputs.
template <int K, int N, int GROUPS, int RW, int WY, int WX, int SPLIT, bool DATA>
__device__ __forceinline__ void conv3x3(const Args& a) {
    constexpr int UK = K / 8, UN = N / 8 / SPLIT, UNITS = UK * GROUPS, ROWS = RW * WY + 2, COLUMNS = 8 * WX + 2;
    // An instruction makes rows m and m + HALF; pairs of rows of x so far apart serve it for all three taps above each
    // other.
    constexpr int HALF = RW / 2, PAIRS = HALF + 2;
    constexpr int THREADS = 32 * WX * WY * SPLIT * GROUPS;
    constexpr u32 PITCH = COLUMNS * UNITS * 16, TILE = ROWS * PITCH;
    // Rows of weights: outputs of the convolution, taps x inputs wide; an odd number of units keeps them in different
    // banks.
    constexpr int WEIGHT_ROWS = DATA ? K : N, WU = DATA ? N / 8 : UK;
    constexpr u32 WEIGHT_PITCH = ((9 * WU) | 1) * 16;
    static_assert(N <= K && (RW == 4 || RW == 8), "results are put where the tile was");
    extern __shared__ uint4 shared[];
    const u32 base = shared_address(shared), weights_at = base + 2 * TILE;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, strip = warp % WX, slice = warp / WX % WY;
    const u32 part = warp / (WX * WY) % SPLIT, group = warp / (WX * WY * SPLIT);
    const u32 g = lane / 4, q = lane % 4, channel = group * N + part * (8 * UN);
    const u64 pixels = u64(u32(a.h)) * u32(a.w);
    const T* x = reinterpret_cast<const T*>(a.x) + blockIdx.y * (GROUPS * K);
    T* y = reinterpret_cast<T*>(a.y) + blockIdx.y * (GROUPS * N);

    const T* weights = reinterpret_cast<const T*>(a.weights) + u64(blockIdx.y) * (GROUPS * WEIGHT_ROWS * 9 * WU * 8);
    for (u32 i = threadIdx.x; i < GROUPS * WEIGHT_ROWS * 9 * WU; i += THREADS)
        copy16(weights_at + i / (9 * WU) * WEIGHT_PITCH + i % (9 * WU) * 16, weights + i * 8, true);
    auto copy = [&](u32 tile, u32 to) {
        u32 image = tile / a.per_image, at = tile % a.per_image;
        Source from{x + image * pixels * a.x_pitch, a.x_pitch, a.h, a.w};
        copy_tile<ROWS, COLUMNS, UNITS, THREADS>(to, from, int(at / a.across * (RW * WY)) - 1, int(at % a.across * 8 * WX) - 1);
        close_copies();
    };
    copy(blockIdx.x, base);

    const u32 group_weights =
        weights_at + group * WEIGHT_ROWS * WEIGHT_PITCH + part * UN * (DATA ? 16 : 8 * WEIGHT_PITCH);
    const u32 pair_weights = group_weights + (DATA ? (lane % 16) * WEIGHT_PITCH + lane / 16 * 16
                                                   : (lane % 8 + lane / 16 * 8) * WEIGHT_PITCH + lane / 8 % 2 * 16);
    u32 stage = 0;
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, stage ^= 1) {
        const u32 here = base + stage * TILE;
        wait_copies();
        __syncthreads();
        if (tile + gridDim.x < a.tiles) copy(tile + gridDim.x, base + (stage ^ 1) * TILE);

        const u32 at = tile % a.per_image;
        const int top = at / a.across * (RW * WY) + slice * RW, left = at % a.across * (8 * WX) + strip * 8;
        T* image = y + tile / a.per_image * pixels * a.y_pitch;
        float sums[HALF][UN][4] = {};
        if (a.add && left + int(g) < a.w) {
#pragma unroll
            for (int row = 0; row < RW; row++) {
                if (top + row >= a.h) break;
                const T* from = image + u64(u32((top + row) * a.w + left) + g) * a.y_pitch + channel + 2 * q;
#pragma unroll
                for (int j = 0; j < UN; j++)
                    unpack(*reinterpret_cast<const u32*>(from + j * 8), sums[row % HALF][j][row / HALF * 2],
                           sums[row % HALF][j][row / HALF * 2 + 1]);
            }
        }

#pragma unroll
        for (int k = 0; k < UK / 2; k++) {
#pragma unroll
            for (int dx = 0; dx < 3; dx++) {
                u32 rows[PAIRS][4];
                u32 from = here + (slice * RW + lane / 8 % 2 * HALF) * PITCH +
                           place<UNITS>(strip * 8 + dx + lane % 8, group * UK + 2 * k + lane / 16);
#pragma unroll
                for (int i = 0; i < PAIRS; i++) load_matrices<false>(rows[i], from + i * PITCH);
#pragma unroll
                for (int dy = 0; dy < 3; dy++) {
                    const int tap = DATA ? 8 - (3 * dy + dx) : 3 * dy + dx;
                    u32 b[UN][2];
                    load_pairs<DATA, UN, DATA ? 16 : 8 * WEIGHT_PITCH>(
                        b, pair_weights + tap * (WU * 16) + k * (DATA ? 16 * WEIGHT_PITCH : 32));
#pragma unroll
                    for (int m = 0; m < HALF; m++)
#pragma unroll
                        for (int j = 0; j < UN; j++) {
                            const u32(&r)[4] = rows[m + dy];
                            multiply(T{}, sums[m][j], r[0], r[1], r[2], r[3], b[j][0], b[j][1]);
                        }
                }
            }
        }
        // The last 8 of an odd number of units.
        if constexpr (UK % 2 == 1) {
            static_assert(UN <= 4, "one load of four matrices");
            u32 tile_of_lane = lane / 8 < UN ? lane / 8 : UN - 1;
            const u32 weights_from = group_weights + (DATA ? ((UK - 1) * 8 + lane % 8) * WEIGHT_PITCH + tile_of_lane * 16
                                                           : (lane % 8 + tile_of_lane * 8) * WEIGHT_PITCH + (UK - 1) * 16);
#pragma unroll
            for (int dx = 0; dx < 3; dx++) {
                u32 rows[PAIRS / 2][4];
                u32 from = here + (slice * RW + lane / 8 % 2 * HALF + lane / 16) * PITCH +
                           place<UNITS>(strip * 8 + dx + lane % 8, group * UK + UK - 1);
#pragma unroll
                for (int i = 0; i < PAIRS / 2; i++) load_matrices<false>(rows[i], from + 2 * i * PITCH);
#pragma unroll
                for (int dy = 0; dy < 3; dy++) {
                    const int tap = DATA ? 8 - (3 * dy + dx) : 3 * dy + dx;
                    u32 b[4];
                    load_matrices<DATA>(b, weights_from + tap * (WU * 16));
#pragma unroll
                    for (int m = 0; m < HALF; m++)
#pragma unroll
                        for (int j = 0; j < UN; j++) {
                            const u32(&r)[4] = rows[(m + dy) / 2];
                            multiply(T{}, sums[m][j], r[(m + dy) % 2 * 2], r[(m + dy) % 2 * 2 + 1], b[j]);
                        }
                }
            }
        }

        // Through shared memory, so that 16 bytes are stored at once.
        __syncthreads();
        u8* results = reinterpret_cast<u8*>(shared) + stage * TILE + warp * (RW * 8 * UN * 16);
#pragma unroll
        for (int row = 0; row < RW; row++)
#pragma unroll
            for (int j = 0; j < UN; j++)
                *reinterpret_cast<u32*>(results + row * (8 * UN * 16) + place<UN>(g, j) + q * 4) =
                    pack(T{}, sums[row % HALF][j][row / HALF * 2], sums[row % HALF][j][row / HALF * 2 + 1]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < RW * UN / 4; i++) {
            u32 at = i * 32 + lane, unit = at % UN, column = at / UN % 8, row = at / (UN * 8);
            if (top + int(row) < a.h && left + int(column) < a.w)
                store16(image + u64(u32((top + row) * a.w + left) + column) * a.y_pitch + channel + unit * 8,
                        *reinterpret_cast<const uint4*>(results + row * (8 * UN * 16) + place<UN>(column, unit)));
        }
    }
}

#define KERNEL(name, channels, groups, rows, down, across, split, blocks)                                                  \
    extern "C" __global__ void __launch_bounds__(32 * down * across * split * groups, blocks) name##_forward(Args a) { \
        conv3x3<channels, channels, groups, rows, down, across, split, false>(a);                                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * down * across * split * groups, blocks) name##_data(Args a) {    \
        conv3x3<channels, channels, groups, rows, down, across, split, true>(a);                                       \
    }

KERNEL(conv16, 16, 1, 8, 2, 2, 1, 6)
KERNEL(conv24, 24, 1, 4, 1, 5, 1, 4)
KERNEL(conv32, 32, 1, 8, 2, 2, 1, 3)
KERNEL(conv48, 48, 1, 4, 1, 5, 2, 2)
KERNEL(groups16, 16, 4, 8, 1, 2, 1, 3)
