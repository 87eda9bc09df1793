// Weight gradients of the convolutions of conv3x3.cu and of 1x1 ones in groups of 16:
// dw(n, tap, k) = sum over pixels of dy(p, n) x(p + tap, k). Each block sums some tiles; sum.cu adds the blocks up.
//
// Reads both tensors once (x about 1.3 times, from L2). 32 -> 32 at 80 x 80, batch 64: 52 MB and 7.5 GFLOP, bound
// 14.5 us; 64 -> 64 in 4 groups at 80 x 80: 105 MB, 29 us, 3x3 or 1x1. Measured on an H200, 2026-11-30, with the sum of
// what blocks left: 45 us; in groups 49 us (3x3) and 38 us (1x1).
//
// Pixels are what an instruction sums over: 8 of one row and 8 of the next. A row of x serves three taps above each
// other. Warps of a block share a tile by group, by tap column, by channels of x and by pairs of rows.

struct Args {
    u64 x, dy, partials;
    u32 x_pitch, dy_pitch;
    int h, w;
    u32 across, per_image, tiles;
    // Pixels in all, for 1x1: images are then one column of 16 wide rows.
    u32 pixels;
};

// Copies of a tile for 1x1: pixels from `first` on, in ROWS rows of COLUMNS.
template <int ROWS, int COLUMNS, int UNITS, int THREADS>
__device__ __forceinline__ void copy_pixels(u32 to, const T* from, u32 pitch, u32 first, u32 end) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < ROWS * COLUMNS * UNITS; i += THREADS) {
        u32 unit = i % UNITS, pixel = i / UNITS, column = pixel % COLUMNS, row = pixel / COLUMNS;
        bool inside = first + pixel < end;
        u64 offset = inside ? u64(first + pixel) * pitch + unit * 8 : 0;
        copy16(to + row * (COLUMNS * UNITS * 16) + place<UNITS>(column, unit), from + offset, inside);
    }
}

// K channels of x and N of dy in each of GROUPS groups, SIDE x SIDE taps. Tiles of R rows and WX times 8 columns. A warp
// takes TAPS tap columns, K / SPLIT channels of x and every SETS-th pair of rows.
template <int K, int N, int GROUPS, int SIDE, int R, int WX, int TAPS, int SPLIT, int SETS>
__device__ __forceinline__ void weight_gradient(const Args& a) {
    constexpr int UK = K / 8, UN = N / 8, UX = UK * GROUPS, UY = UN * GROUPS;
    constexpr int ROWS = R + SIDE - 1, COLUMNS = 8 * WX + SIDE - 1;
    constexpr int PARTS = SIDE / TAPS, WARPS = GROUPS * PARTS * SPLIT * SETS, THREADS = 32 * WARPS;
    constexpr int MT = (N + 15) / 16, NT = UK / SPLIT;
    constexpr u32 X_PITCH = COLUMNS * UX * 16, Y_PITCH = 8 * WX * UY * 16;
    constexpr u32 X_TILE = ROWS * X_PITCH, Y_TILE = R * Y_PITCH, STAGE = X_TILE + Y_TILE;
    static_assert(SIDE == 3 || NT % 2 == 0, "1x1 loads two units at once");
    extern __shared__ uint4 shared[];
    const u32 base = shared_address(shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 set = warp % SETS, split = warp / SETS % SPLIT, part = warp / (SETS * SPLIT) % PARTS;
    const u32 group = warp / (SETS * SPLIT * PARTS);
    const T* x = reinterpret_cast<const T*>(a.x) + blockIdx.y * (GROUPS * K);
    const T* dy = reinterpret_cast<const T*>(a.dy) + blockIdx.y * (GROUPS * N);

    auto copy = [&](u32 tile, u32 to) {
        if constexpr (SIDE == 1) {
            copy_pixels<R, 8 * WX, UX, THREADS>(to, x, a.x_pitch, tile * (R * 8 * WX), a.pixels);
            copy_pixels<R, 8 * WX, UY, THREADS>(to + X_TILE, dy, a.dy_pitch, tile * (R * 8 * WX), a.pixels);
        } else {
            u32 at = tile % a.per_image;
            u64 before = u64(tile / a.per_image) * u32(a.h) * u32(a.w);
            int top = at / a.across * R, left = at % a.across * (8 * WX);
            copy_tile<ROWS, COLUMNS, UX, THREADS>(to, Source{x + before * a.x_pitch, a.x_pitch, a.h, a.w}, top - 1, left - 1);
            copy_tile<R, 8 * WX, UY, THREADS>(to + X_TILE, Source{dy + before * a.dy_pitch, a.dy_pitch, a.h, a.w}, top, left);
        }
        close_copies();
    };
    copy(blockIdx.x, base);

    float sums[TAPS][SIDE][MT][NT][4] = {};
    u32 stage = 0;
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, stage ^= 1) {
        const u32 here = base + stage * STAGE;
        wait_copies();
        __syncthreads();
        if (tile + gridDim.x < a.tiles) copy(tile + gridDim.x, base + (stage ^ 1) * STAGE);
        for (u32 pair = set; pair < R / 2; pair += SETS) {
            const u32 x_row = here + 2 * pair * X_PITCH, y_row = here + X_TILE + (2 * pair + lane / 16) * Y_PITCH;
// Unrolled, registers run out.
#pragma unroll 1
            for (int strip = 0; strip < WX; strip++) {
                // dy turned round: 16 channels by 8 pixels of a row and 8 of the next.
                u32 left[MT][4];
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    u32 unit = 2 * m + lane / 8 % 2;
                    if constexpr (UN % 2 == 1) unit = unit < UN ? unit : UN - 1;
                    load_matrices<true>(left[m], y_row + place<UY>(strip * 8 + lane % 8, group * UN + unit));
                }
#pragma unroll
                for (int t = 0; t < TAPS; t++) {
                    const u32 column = strip * 8 + part * TAPS + t + lane % 8;
                    u32 right[SIDE + 1][NT];
                    if constexpr (SIDE == 3) {
#pragma unroll
                        for (int n = 0; n < NT; n++) {
                            u32 r[4];
                            load_matrices<true>(
                                r, x_row + lane / 8 * X_PITCH + place<UX>(column, group * UK + split * NT + n));
                            right[0][n] = r[0], right[1][n] = r[1], right[2][n] = r[2], right[3][n] = r[3];
                        }
                    } else {
#pragma unroll
                        for (int n = 0; n < NT; n += 2) {
                            u32 r[4];
                            load_matrices<true>(r, x_row + lane / 8 % 2 * X_PITCH +
                                                       place<UX>(column, group * UK + split * NT + n + lane / 16));
                            right[0][n] = r[0], right[1][n] = r[1], right[0][n + 1] = r[2], right[1][n + 1] = r[3];
                        }
                    }
#pragma unroll
                    for (int v = 0; v < SIDE; v++)
#pragma unroll
                        for (int m = 0; m < MT; m++)
#pragma unroll
                            for (int n = 0; n < NT; n++)
                                multiply(T{}, sums[t][v][m][n], left[m][0], left[m][1], left[m][2], left[m][3],
                                         right[v][n], right[v + 1][n]);
                }
            }
        }
    }

    // Sets one after the other into shared memory, then out.
    constexpr u32 WEIGHTS = GROUPS * N * SIDE * SIDE * K;
    float* total = reinterpret_cast<float*>(shared);
    for (u32 turn = 0; turn < SETS; turn++) {
        __syncthreads();
        if (turn != set) continue;
#pragma unroll
        for (int t = 0; t < TAPS; t++)
#pragma unroll
            for (int v = 0; v < SIDE; v++)
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            u32 output = m * 16 + lane / 4 + i / 2 * 8, tap = v * SIDE + part * TAPS + t;
                            if (output >= N) continue;
                            u32 input = (split * NT + n) * 8 + lane % 4 * 2 + i % 2;
                            float* to = total + ((group * N + output) * (SIDE * SIDE) + tap) * K + input;
                            *to = turn == 0 ? sums[t][v][m][n][i] : *to + sums[t][v][m][n][i];
                        }
    }
    __syncthreads();
    float* partial = reinterpret_cast<float*>(a.partials) + (u64(blockIdx.x) * gridDim.y + blockIdx.y) * WEIGHTS;
    for (u32 i = threadIdx.x; i < WEIGHTS / 4; i += THREADS)
        reinterpret_cast<float4*>(partial)[i] = reinterpret_cast<const float4*>(total)[i];
}

#define KERNEL(name, channels, groups, side, rows, strips, taps, split, sets, blocks)                                  \
    extern "C" __global__ void __launch_bounds__(32 * groups * (side / taps) * split * sets, blocks) name(Args a) {    \
        weight_gradient<channels, channels, groups, side, rows, strips, taps, split, sets>(a);                         \
    }

KERNEL(conv16_weight, 16, 1, 3, 8, 5, 3, 1, 4, 4)
KERNEL(conv24_weight, 24, 1, 3, 8, 5, 1, 1, 4, 1)
KERNEL(conv32_weight, 32, 1, 3, 8, 5, 1, 1, 4, 1)
KERNEL(conv48_weight, 48, 1, 3, 4, 5, 1, 2, 2, 1)
KERNEL(groups16_weight, 16, 4, 3, 8, 2, 3, 1, 2, 2)
KERNEL(points16_weight, 16, 4, 1, 8, 2, 1, 1, 2, 3)
