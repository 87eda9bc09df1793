// Maximum of each window (padding is minus infinity, NaN wins), and its gradient, which goes to the first maximum of
// each window in row-major order (of several NaNs, to the last). Windows of any size; max_pool_5.cu has those of the
// models.
//
// The gradient takes two kernels: one finds where each window's first maximum is (one or two bytes a value), the other
// gathers: each element of dx looks at the windows that hold it. Nothing is added atomically.
//
// Reads x, writes y: a 3x3 window of stride 2 over 64x40x40x256 in bf16 moves 66 MB, 16 us at 4.2 TB/s, the rate of a
// copy; each value is read kernel^2 / stride^2 times from cache. No model has such windows: no time on a card is kept.

struct MaxPoolArgs {
    View x, y;
    Tiling t; // over y's pixels
    Window window;
    u32 unused;
    u64 places; // of each value of y: position of its maximum in the window, row by row
};

__device__ __forceinline__ bool above(float v, float best) { return v > best || v != v; }
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }

template <typename T> __device__ __forceinline__ void max_pool(const MaxPoolArgs& a) {
    each_pixel(a.t, a.y.n, a.y.h, a.y.w, a.y.c, [&](u32 p, const Pixel& o, u32 c) {
        float best[8];
#pragma unroll
        for (int i = 0; i < 8; i++) best[i] = minus_infinity();
        each_value<T, 4>(a.x, o.n, pixels_in(a.window, o, a.x), c, [&](const float (&v)[8], u32, u32, u32) {
#pragma unroll
            for (int i = 0; i < 8; i++) best[i] = above(v[i], best[i]) ? v[i] : best[i];
        });
        store8(at<T>(a.y, p, c), pack<T>(best));
    });
}

// Positions of eight values, eight or sixteen bytes.
__device__ __forceinline__ void store_places(u8* p, const u32 (&v)[8]) {
    u32 low = v[0] | v[1] << 8 | v[2] << 16 | v[3] << 24, high = v[4] | v[5] << 8 | v[6] << 16 | v[7] << 24;
    *reinterpret_cast<uint2*>(p) = make_uint2(low, high);
}
__device__ __forceinline__ void store_places(u16* p, const u32 (&v)[8]) {
    *reinterpret_cast<uint4*>(p) =
        make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}
__device__ __forceinline__ void load_places(const u8* p, u32 (&v)[8]) {
    uint2 raw = *reinterpret_cast<const uint2*>(p);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = raw.x >> (8 * i) & 0xFFu;
        v[4 + i] = raw.y >> (8 * i) & 0xFFu;
    }
}
__device__ __forceinline__ void load_places(const u16* p, u32 (&v)[8]) {
    uint4 raw = *reinterpret_cast<const uint4*>(p);
    u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = words[i] & 0xFFFFu;
        v[2 * i + 1] = words[i] >> 16;
    }
}

// Here y is only the shape of the result.
template <typename T, typename Place> __device__ __forceinline__ void max_pool_places(const MaxPoolArgs& a) {
    each_pixel(a.t, a.y.n, a.y.h, a.y.w, a.y.c, [&](u32 p, const Pixel& o, u32 c) {
        Rectangle in = pixels_in(a.window, o, a.x);
        // Position of the picture's pixel (r, q) in the window; the first one wins where nothing is above -infinity.
        u32 row0 = a.window.pad - o.y * a.window.stride, column0 = a.window.pad - o.x * a.window.stride;
        auto position = [&](u32 r, u32 q) { return (r + row0) * a.window.kernel + q + column0; };
        float best[8];
        u32 place[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            best[i] = minus_infinity();
            place[i] = position(in.top, in.left);
        }
        each_value<T, 2>(a.x, o.n, in, c, [&](const float (&v)[8], u32, u32 r, u32 q) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                bool better = above(v[i], best[i]);
                best[i] = better ? v[i] : best[i];
                place[i] = better ? position(r, q) : place[i];
            }
        });
        store_places(reinterpret_cast<Place*>(a.places) + u64(p) * a.y.c + c, place);
    });
}

struct MaxPoolGradArgs {
    View dy, dx;
    Tiling t; // over dx's pixels
    Window window;
    u32 accumulate;
    u64 places;
};

template <typename T, typename Place> __device__ __forceinline__ void max_pool_grad(const MaxPoolGradArgs& a) {
    const Place* places = reinterpret_cast<const Place*>(a.places);
    each_pixel(a.t, a.dx.n, a.dx.h, a.dx.w, a.dx.c, [&](u32 p, const Pixel& o, u32 c) {
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = 0.0f;
        if (a.accumulate) unpack(load8(at<T>(a.dx, p, c)), sum);
        Rectangle in = windows_at(a.window, o, a.dy);
        each_value<T, 4>(a.dy, o.n, in, c, [&](const float (&v)[8], u32 pixel, u32 r, u32 q) {
            u32 row = o.y + a.window.pad - r * a.window.stride, column = o.x + a.window.pad - q * a.window.stride;
            u32 place[8];
            load_places(places + u64(pixel) * a.dy.c + c, place);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] += place[i] == row * a.window.kernel + column ? v[i] : 0.0f;
        });
        store8(at<T>(a.dx, p, c), pack<T>(sum));
    });
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) max_pool_##S(MaxPoolArgs a) { max_pool<T>(a); } \
    extern "C" __global__ void __launch_bounds__(256) max_pool_places_u8_##S(MaxPoolArgs a) { \
        max_pool_places<T, u8>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) max_pool_places_u16_##S(MaxPoolArgs a) { \
        max_pool_places<T, u16>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) max_pool_grad_u8_##S(MaxPoolGradArgs a) { \
        max_pool_grad<T, u8>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) max_pool_grad_u16_##S(MaxPoolGradArgs a) { \
        max_pool_grad<T, u16>(a); \
    }
EACH_TYPE(DEFINE)
