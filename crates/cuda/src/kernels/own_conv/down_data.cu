// Data gradient of a 3x3 convolution of stride 2 over few channels: dx(2i + a, 2j + b, n) = sum over the one, two or four
// taps of that parity and over k of dy(i + u, j + v, k) w(k, tap, n). Down a row of dx, a = 0 takes tap 1 of dy's row
// i, and a = 1 takes tap 2 of row i and tap 0 of row i + 1; likewise across.
//
// Reads each pixel of dy about 1.2 times (halos, from L2) and writes each pixel of dx once. 32 <- 64 at 320 x 320, batch
// 64: 210 MB + 419 MB and 60 GFLOP, bound 0.175 ms (3.6 TB/s; 0.101 ms at 600 TFLOP/s). Measured on an H200, 2026-11-30:
// 0.212 ms; 16 <- 32 at 320 x 320, of half the bytes, 0.087 ms.
//
// As conv3x3.cu: a block keeps the weights and walks over tiles of dy; the next one is copied while one is computed. A
// warp makes RW rows of 8 pixels of dy into twice as many rows of 16, all four parities from the same loads.

struct Args {
    u64 dy, weights, dx;
    u32 dy_pitch, dx_pitch;
    // Of dx.
    int h, w;
    // Tiles of an image across, of an image, and of all images.
    u32 across, per_image, tiles;
    u32 add;
};

// K channels of dy and N of dx. A tile is WY times as high and WX times as wide as what a warp makes.
template <int K, int N, int RW, int WY, int WX> __device__ __forceinline__ void down_data(const Args& a) {
    constexpr int UK = K / 8, UN = N / 8, ROWS = RW * WY + 1, COLUMNS = 8 * WX + 1, THREADS = 32 * WX * WY;
    // An instruction makes rows m and m + HALF.
    constexpr int HALF = RW / 2, PAIRS = HALF + 1;
    constexpr u32 PITCH = COLUMNS * UK * 16, TILE = ROWS * PITCH, WEIGHT_PITCH = ((9 * UN) | 1) * 16;
    constexpr u32 RESULT_PITCH = 16 * UN * 16, RESULTS = RW * RESULT_PITCH;
    static_assert(WX * WY * RESULTS <= TILE, "results are put where the tile was");
    extern __shared__ uint4 shared[];
    const u32 base = shared_address(shared), weights_at = base + 2 * TILE;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, strip = warp % WX, slice = warp / WX;
    const u32 g = lane / 4, q = lane % 4;
    const int dy_h = (a.h + 1) / 2, dy_w = (a.w + 1) / 2;

    for (u32 i = threadIdx.x; i < K * 9 * UN; i += THREADS)
        copy16(weights_at + i / (9 * UN) * WEIGHT_PITCH + i % (9 * UN) * 16, reinterpret_cast<const T*>(a.weights) + i * 8,
               true);
    auto copy = [&](u32 tile, u32 to) {
        u32 image = tile / a.per_image, at = tile % a.per_image;
        const T* dy = reinterpret_cast<const T*>(a.dy) + image * (u64(u32(dy_h)) * u32(dy_w)) * a.dy_pitch;
        Source from{dy, a.dy_pitch, dy_h, dy_w};
        copy_tile<ROWS, COLUMNS, UK, THREADS>(to, from, int(at / a.across * (RW * WY)), int(at % a.across * (8 * WX)));
        close_copies();
    };
    copy(blockIdx.x, base);

    const u32 pair_weights = weights_at + lane % 16 * WEIGHT_PITCH + lane / 16 * 16;
    u32 stage = 0;
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, stage ^= 1) {
        const u32 here = base + stage * TILE;
        wait_copies();
        __syncthreads();
        if (tile + gridDim.x < a.tiles) copy(tile + gridDim.x, base + (stage ^ 1) * TILE);

        const u32 at = tile % a.per_image;
        // In dx.
        const int top = 2 * int(at / a.across * (RW * WY) + slice * RW), left = 2 * int(at % a.across * (8 * WX) + strip * 8);
        T* image = reinterpret_cast<T*>(a.dx) + tile / a.per_image * (u64(u32(a.h)) * u32(a.w)) * a.dx_pitch;
        float sums[2][2][HALF][UN][4] = {};
        if (a.add) {
#pragma unroll
            for (int row = 0; row < 2 * RW; row++)
#pragma unroll
                for (int right = 0; right < 2; right++) {
                    const int y = top + row, x = left + 2 * int(g) + right, m = row / 2;
                    if (y >= a.h || x >= a.w) continue;
                    const T* from = image + u64(u32(y * a.w + x)) * a.dx_pitch + 2 * q;
#pragma unroll
                    for (int j = 0; j < UN; j++) {
                        float(&sum)[4] = sums[row % 2][right][m % HALF][j];
                        unpack(*reinterpret_cast<const u32*>(from + j * 8), sum[m / HALF * 2], sum[m / HALF * 2 + 1]);
                    }
                }
        }

#pragma unroll
        for (int k = 0; k < UK / 2; k++) {
#pragma unroll
            for (int v = 0; v < 2; v++) {
                u32 rows[PAIRS][4];
                const u32 from = here + (slice * RW + lane / 8 % 2 * HALF) * PITCH +
                                 place<UK>(strip * 8 + v + lane % 8, 2 * k + lane / 16);
#pragma unroll
                for (int i = 0; i < PAIRS; i++) load_matrices<false>(rows[i], from + i * PITCH);
#pragma unroll
                for (int ky = 0; ky < 3; ky++)
#pragma unroll
                    for (int right = v; right < 2; right++) {
                        const int down = ky == 1 ? 0 : 1, u = ky == 0 ? 1 : 0, kx = right == 0 ? 1 : v == 0 ? 2 : 0;
                        u32 b[UN][2];
                        load_pairs<true, UN, 16>(b, pair_weights + (3 * ky + kx) * (UN * 16) + k * (16 * WEIGHT_PITCH));
#pragma unroll
                        for (int m = 0; m < HALF; m++)
#pragma unroll
                            for (int j = 0; j < UN; j++) {
                                const u32(&r)[4] = rows[m + u];
                                multiply(T{}, sums[down][right][m][j], r[0], r[1], r[2], r[3], b[j][0], b[j][1]);
                            }
                    }
            }
        }

        // Through shared memory, so that 16 bytes are stored at once: first the even rows, then the odd ones.
        __syncthreads();
        u8* results = reinterpret_cast<u8*>(shared) + stage * TILE + warp * RESULTS;
#pragma unroll
        for (int down = 0; down < 2; down++) {
            __syncwarp();
#pragma unroll
            for (int row = 0; row < RW; row++)
#pragma unroll
                for (int right = 0; right < 2; right++)
#pragma unroll
                    for (int j = 0; j < UN; j++) {
                        const float(&sum)[4] = sums[down][right][row % HALF][j];
                        *reinterpret_cast<u32*>(results + row * RESULT_PITCH + place<UN>(2 * g + right, j) + q * 4) =
                            pack(T{}, sum[row / HALF * 2], sum[row / HALF * 2 + 1]);
                    }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < RW * UN / 2; i++) {
                const u32 item = i * 32 + lane, unit = item % UN, column = item / UN % 16, row = item / (UN * 16);
                const int y = top + 2 * int(row) + down, x = left + int(column);
                if (y < a.h && x < a.w)
                    store16(image + u64(u32(y * a.w + x)) * a.dx_pitch + unit * 8,
                            *reinterpret_cast<const uint4*>(results + row * RESULT_PITCH + place<UN>(column, unit)));
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 4) down16_data(Args a) { down_data<32, 16, 4, 2, 2>(a); }
extern "C" __global__ void __launch_bounds__(128, 2) down32_data(Args a) { down_data<64, 32, 4, 2, 2>(a); }
