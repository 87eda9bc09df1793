// Mean of each window, padding counted as zero, and its gradient: dy / kernel^2 summed over the windows that hold a
// pixel.
//
// Reads x, writes y: 64x160x160x32 in bf16 is 209 MB, 50 us at 4.2 TB/s, the rate of a copy. A 2x2 window of stride 1
// (and its gradient, which is such a window shifted) reads each value 2.5 times from cache: 4 results of a column share
// 5 rows of 2. Measured on an H200, 2026-11-30: 55 us, either.

struct AveragePoolArgs {
    View x, y; // the gradient: dy, dx
    Tiling t;  // over y's pixels
    Window window;
    u32 accumulate;
    float scale; // 1 / kernel^2
    int shift;   // of the 2x2 window: row i of y sums rows i + shift and i + shift + 1 of x
};

template <typename T> __device__ __forceinline__ void finish(const AveragePoolArgs& a, u32 p, u32 c, float (&sum)[8]) {
    float old[8];
    if (a.accumulate) unpack(load8(at<T>(a.y, p, c)), old);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = a.accumulate ? fmaf(sum[i], a.scale, old[i]) : sum[i] * a.scale;
    store8(at<T>(a.y, p, c), pack<T>(sum));
}

template <typename T, bool GRADIENT> __device__ __forceinline__ void average_pool(const AveragePoolArgs& a) {
    each_pixel(a.t, a.y.n, a.y.h, a.y.w, a.y.c, [&](u32 p, const Pixel& o, u32 c) {
        Rectangle in = GRADIENT ? windows_at(a.window, o, a.x) : pixels_in(a.window, o, a.x);
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = 0.0f;
        each_value<T, 4>(a.x, o.n, in, c, [&](const float (&v)[8], u32, u32, u32) {
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] += v[i];
        });
        finish<T>(a, p, c, sum);
    });
}

// Four results of one column a thread: its "pixels" are n * ceil(h / 4) * w.
template <typename T> __device__ __forceinline__ void average_pool_2(const AveragePoolArgs& a) {
    u32 h = a.y.h, w = a.y.w, groups = (h + 3) / 4;
    each_pixel(a.t, a.y.n, groups, w, a.y.c, [&](u32, const Pixel& o, u32 c) {
        u32 top = o.y * 4;
        Eight<T> raw[5][2];
#pragma unroll
        for (int r = 0; r < 5; r++)
#pragma unroll
            for (int q = 0; q < 2; q++) {
                // Outside of the picture, below zero too, is zero.
                u32 y = top + r + a.shift, x = o.x + q + a.shift;
                bool inside = y < a.x.h && x < a.x.w;
                raw[r][q] = inside ? load8(at<T>(a.x, (o.n * a.x.h + y) * a.x.w + x, c)) : Eight<T>{};
            }
        float above[8], below[8];
#pragma unroll
        for (int r = 0; r < 5; r++) {
            float left[8], right[8], sum[8];
            unpack(raw[r][0], left);
            unpack(raw[r][1], right);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                below[i] = left[i] + right[i];
                sum[i] = r == 0 ? 0.0f : above[i] + below[i];
                above[i] = below[i];
            }
            if (r > 0 && top + r - 1 < h) finish<T>(a, (o.n * h + top + r - 1) * w + o.x, c, sum);
        }
    });
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) average_pool_##S(AveragePoolArgs a) { \
        average_pool<T, false>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) average_pool_grad_##S(AveragePoolArgs a) { \
        average_pool<T, true>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) average_pool_2_##S(AveragePoolArgs a) { average_pool_2<T>(a); }
EACH_TYPE(DEFINE)
