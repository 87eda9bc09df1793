// Maximum of each window (padding is minus infinity, NaN wins), and its gradient, which goes to the first maximum of
// each window in row-major order.
//
// The gradient takes two kernels: one finds where each window's first maximum is (one or two bytes a value), the other
// gathers: each element of dx looks at the windows that hold it. Nothing is added atomically.
//
// Reads x, writes y: 64x20x20x256 in bf16 is 26 MB, 5.5 us at 4.8 TB/s. A 5x5 window of stride 1 reads each value 9
// times from cache (5 results of a column share 9 rows of 5), in the gradient too; the others kernel^2 times.

struct Window {
    u32 kernel, stride, pad;
};

struct MaxPoolArgs {
    View x, y;
    Tiling t; // over y's pixels
    Window window;
    u32 unused;
    u64 places; // of each value of y: position of its maximum in the window, row by row
};

// Rows or columns of window i that lie in the picture: first, and one past the last.
__device__ __forceinline__ void range(const Window& w, u32 i, u32 extent, u32& first, u32& end) {
    u32 start = i * w.stride;
    first = start > w.pad ? start - w.pad : 0;
    end = start + w.kernel > w.pad ? start + w.kernel - w.pad : 0;
    end = end < extent ? end : extent;
}
__device__ __forceinline__ bool above(float v, float best) { return v > best || v != v; }
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }

template <typename T> __device__ __forceinline__ void max_pool(const MaxPoolArgs& a) {
    Part part(a.t, pixels_of(a.y), a.y.c);
    if (!part.inside) return;
    u32 c = part.channel();
    for (u32 p = part.first + part.row; p < part.end; p += a.t.rows) {
        Pixel o(p, a.y.h, a.y.w);
        u32 top, bottom, left, right;
        range(a.window, o.y, a.x.h, top, bottom);
        range(a.window, o.x, a.x.w, left, right);
        float best[8];
#pragma unroll
        for (int i = 0; i < 8; i++) best[i] = minus_infinity();
        for (u32 r = top; r < bottom; r++) {
            u32 line = (o.n * a.x.h + r) * a.x.w;
#pragma unroll 4
            for (u32 q = left; q < right; q++) {
                float v[8];
                unpack(load8(at<T>(a.x, line + q, c)), v);
#pragma unroll
                for (int i = 0; i < 8; i++) best[i] = above(v[i], best[i]) ? v[i] : best[i];
            }
        }
        store8(at<T>(a.y, p, c), pack<T>(best));
    }
}

// 5x5, stride 1, padding 2. A thread makes five results of one column: its "pixels" are n * ceil(h / 5) * w.
template <typename T> __device__ __forceinline__ void max_pool_5(const MaxPoolArgs& a) {
    u32 h = a.y.h, w = a.y.w, groups = (h + 4) / 5;
    Part part(a.t, a.y.n * groups * w, a.y.c);
    if (!part.inside) return;
    u32 c = part.channel();
    for (u32 p = part.first + part.row; p < part.end; p += a.t.rows) {
        Pixel o(p, groups, w);
        u32 top = o.y * 5;
        float best[5][8];
#pragma unroll
        for (int k = 0; k < 5; k++)
#pragma unroll
            for (int i = 0; i < 8; i++) best[k][i] = minus_infinity();
#pragma unroll
        for (int r = 0; r < 9; r++) {
            // Row top + r - 2 belongs to the results r - 4 to r.
            u32 y = top + r - 2;
            if (y >= h) continue; // also below zero
            u32 line = (o.n * h + y) * w;
            Eight<T> raw[5];
#pragma unroll
            for (int q = 0; q < 5; q++) {
                u32 x = o.x + q - 2;
                if (x < w) raw[q] = load8(at<T>(a.x, line + x, c));
            }
            float most[8];
#pragma unroll
            for (int i = 0; i < 8; i++) most[i] = minus_infinity();
#pragma unroll
            for (int q = 0; q < 5; q++) {
                if (o.x + q - 2 >= w) continue;
                float v[8];
                unpack(raw[q], v);
#pragma unroll
                for (int i = 0; i < 8; i++) most[i] = above(v[i], most[i]) ? v[i] : most[i];
            }
#pragma unroll
            for (int k = 0; k < 5; k++) {
                if (k > r || k + 4 < r) continue;
#pragma unroll
                for (int i = 0; i < 8; i++) best[k][i] = above(most[i], best[k][i]) ? most[i] : best[k][i];
            }
        }
#pragma unroll
        for (int k = 0; k < 5; k++)
            if (top + k < h) store8(at<T>(a.y, (o.n * h + top + k) * w + o.x, c), pack<T>(best[k]));
    }
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
    Part part(a.t, pixels_of(a.y), a.y.c);
    if (!part.inside) return;
    u32 c = part.channel();
    for (u32 p = part.first + part.row; p < part.end; p += a.t.rows) {
        Pixel o(p, a.y.h, a.y.w);
        u32 top, bottom, left, right;
        range(a.window, o.y, a.x.h, top, bottom);
        range(a.window, o.x, a.x.w, left, right);
        // Position of the picture's pixel (r, q) in the window; the first one wins where nothing is above -infinity.
        u32 row0 = a.window.pad - o.y * a.window.stride, column0 = a.window.pad - o.x * a.window.stride;
        float best[8];
        u32 place[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            best[i] = minus_infinity();
            place[i] = (top + row0) * a.window.kernel + left + column0;
        }
        for (u32 r = top; r < bottom; r++) {
            u32 line = (o.n * a.x.h + r) * a.x.w;
#pragma unroll 2
            for (u32 q = left; q < right; q++) {
                u32 here = (r + row0) * a.window.kernel + q + column0;
                float v[8];
                unpack(load8(at<T>(a.x, line + q, c)), v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    bool better = above(v[i], best[i]);
                    best[i] = better ? v[i] : best[i];
                    place[i] = better ? here : place[i];
                }
            }
        }
        store_places(reinterpret_cast<Place*>(a.places) + u64(p) * a.y.c + c, place);
    }
}

// Four channels of a pixel.
template <typename T> __device__ __forceinline__ void load4(const T* p, uint2& raw) {
    raw = *reinterpret_cast<const uint2*>(p);
}
__device__ __forceinline__ void load4(const float* p, uint4& raw) { raw = *reinterpret_cast<const uint4*>(p); }
template <typename T> __device__ __forceinline__ void unpack4(const uint2& raw, float (&v)[4]) {
    halves(T{}, raw.x, v[0], v[1]);
    halves(T{}, raw.y, v[2], v[3]);
}
template <typename T> __device__ __forceinline__ void unpack4(const uint4& raw, float (&v)[4]) {
    v[0] = __uint_as_float(raw.x);
    v[1] = __uint_as_float(raw.y);
    v[2] = __uint_as_float(raw.z);
    v[3] = __uint_as_float(raw.w);
}
template <typename T> struct RawFour { using Type = uint2; };
template <> struct RawFour<float> { using Type = uint4; };

// Places of 5x5 windows as `max_pool_5` makes their maxima, but four channels at a time: the first maximum of each row,
// then the first row. Of several NaNs the last one wins, as in `max_pool_places`.
template <typename T> __device__ __forceinline__ void max_pool_places_5(const MaxPoolArgs& a) {
    u32 h = a.y.h, w = a.y.w, groups = (h + 4) / 5;
    Part part(a.t, a.y.n * groups * w, a.y.c);
    if (!part.inside) return;
    for (u32 p = part.first + part.row; p < part.end; p += a.t.rows) {
        Pixel o(p, groups, w);
        u32 top = o.y * 5, left = o.x < 2 ? 2 - o.x : 0;
#pragma unroll 1
        for (u32 c = part.channel(); c < part.channel() + 8; c += 4) {
            float best[5][4];
            u32 place[5][4];
#pragma unroll
            for (u32 k = 0; k < 5; k++) {
                u32 above_picture = top + k < 2 ? 2 - (top + k) : 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    best[k][i] = minus_infinity();
                    place[k][i] = above_picture * 5 + left;
                }
            }
            // Unrolled, the rows take more registers than there are.
#pragma unroll 1
            for (u32 r = 0; r < 9; r++) {
                // Row top + r - 2 is row r - k of result k's window.
                u32 y = top + r - 2;
                if (y >= h) continue; // also below zero
                u32 line = (o.n * h + y) * w;
                typename RawFour<T>::Type raw[5];
#pragma unroll
                for (u32 q = 0; q < 5; q++)
                    if (o.x + q - 2 < w) load4(at<T>(a.x, line + o.x + q - 2, c), raw[q]);
                float most[4];
                u32 column[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    most[i] = minus_infinity();
                    column[i] = left;
                }
#pragma unroll
                for (u32 q = 0; q < 5; q++) {
                    if (o.x + q - 2 >= w) continue;
                    float v[4];
                    unpack4<T>(raw[q], v);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        bool better = above(v[i], most[i]);
                        most[i] = better ? v[i] : most[i];
                        column[i] = better ? q : column[i];
                    }
                }
#pragma unroll
                for (u32 k = 0; k < 5; k++) {
                    if (r - k > 4) continue; // also below zero
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        bool better = above(most[i], best[k][i]);
                        best[k][i] = better ? most[i] : best[k][i];
                        place[k][i] = better ? (r - k) * 5 + column[i] : place[k][i];
                    }
                }
            }
            u8* places = reinterpret_cast<u8*>(a.places);
#pragma unroll
            for (u32 k = 0; k < 5; k++) {
                if (top + k >= h) break;
                u32 word = place[k][0] | place[k][1] << 8 | place[k][2] << 16 | place[k][3] << 24;
                *reinterpret_cast<u32*>(places + u64((o.n * h + top + k) * w + o.x) * a.y.c + c) = word;
            }
        }
    }
}

struct MaxPoolGradArgs {
    View dy, dx;
    Tiling t; // over dx's pixels
    Window window;
    u32 accumulate;
    u64 places;
};

// Windows that hold row or column i: first, and one past the last.
__device__ __forceinline__ void holders(const Window& w, u32 i, u32 windows, u32& first, u32& end) {
    u32 from = i + w.pad;
    first = from + 1 > w.kernel ? (from + w.stride - w.kernel) / w.stride : 0;
    end = from / w.stride + 1;
    end = end < windows ? end : windows;
}

template <typename T, typename Place> __device__ __forceinline__ void max_pool_grad(const MaxPoolGradArgs& a) {
    Part part(a.t, pixels_of(a.dx), a.dx.c);
    if (!part.inside) return;
    u32 c = part.channel();
    const Place* places = reinterpret_cast<const Place*>(a.places);
    for (u32 p = part.first + part.row; p < part.end; p += a.t.rows) {
        Pixel o(p, a.dx.h, a.dx.w);
        u32 top, bottom, left, right;
        holders(a.window, o.y, a.dy.h, top, bottom);
        holders(a.window, o.x, a.dy.w, left, right);
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = 0.0f;
        if (a.accumulate) unpack(load8(at<T>(a.dx, p, c)), sum);
        for (u32 r = top; r < bottom; r++) {
            u32 line = (o.n * a.dy.h + r) * a.dy.w;
            u32 row = o.y + a.window.pad - r * a.window.stride;
#pragma unroll 4
            for (u32 q = left; q < right; q++) {
                u32 here = row * a.window.kernel + o.x + a.window.pad - q * a.window.stride;
                float v[8];
                u32 place[8];
                unpack(load8(at<T>(a.dy, line + q, c)), v);
                load_places(places + u64(line + q) * a.dy.c + c, place);
#pragma unroll
                for (int i = 0; i < 8; i++) sum[i] += place[i] == here ? v[i] : 0.0f;
            }
        }
        store8(at<T>(a.dx, p, c), pack<T>(sum));
    }
}

// 5x5, stride 1, padding 2. A thread makes five gradients of one column, in the order of `max_pool_grad`.
template <typename T> __device__ __forceinline__ void max_pool_grad_5(const MaxPoolGradArgs& a) {
    u32 h = a.dx.h, w = a.dx.w, groups = (h + 4) / 5;
    Part part(a.t, a.dx.n * groups * w, a.dx.c);
    if (!part.inside) return;
    u32 c = part.channel();
    const u8* places = reinterpret_cast<const u8*>(a.places);
    for (u32 p = part.first + part.row; p < part.end; p += a.t.rows) {
        Pixel o(p, groups, w);
        u32 top = o.y * 5, first = (o.n * h + top) * w + o.x;
        float sum[5][8];
#pragma unroll
        for (u32 k = 0; k < 5; k++) {
#pragma unroll
            for (int i = 0; i < 8; i++) sum[k][i] = 0.0f;
            if (a.accumulate && top + k < h) unpack(load8(at<T>(a.dx, first + k * w, c)), sum[k]);
        }
#pragma unroll 1
        for (u32 r = 0; r < 9; r++) {
            // Windows of row top + r - 2: pixel k is their row k + 4 - r.
            u32 y = top + r - 2;
            if (y >= h) continue; // also below zero
            u32 line = (o.n * h + y) * w, row[5];
#pragma unroll
            for (u32 k = 0; k < 5; k++) row[k] = r - k < 5 ? (k + 4 - r) * 5 + 4 : 255;
            Eight<T> dy[5];
            uint2 raw[5];
#pragma unroll
            for (u32 q = 0; q < 5; q++) {
                u32 x = o.x + q - 2;
                if (x >= w) continue;
                dy[q] = load8(at<T>(a.dy, line + x, c));
                raw[q] = *reinterpret_cast<const uint2*>(places + u64(line + x) * a.dy.c + c);
            }
#pragma unroll
            for (u32 q = 0; q < 5; q++) {
                if (o.x + q - 2 >= w) continue;
                float v[8];
                unpack(dy[q], v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    u32 place = (i < 4 ? raw[q].x : raw[q].y) >> (8 * (i % 4)) & 0xFFu;
#pragma unroll
                    for (u32 k = 0; k < 5; k++) sum[k][i] += place + q == row[k] ? v[i] : 0.0f;
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < 5; k++)
            if (top + k < h) store8(at<T>(a.dx, first + k * w, c), pack<T>(sum[k]));
    }
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256, 2) max_pool_places_5_##S(MaxPoolArgs a) { \
        max_pool_places_5<T>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256, 2) max_pool_grad_5_##S(MaxPoolGradArgs a) { \
        max_pool_grad_5<T>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) max_pool_##S(MaxPoolArgs a) { max_pool<T>(a); } \
    extern "C" __global__ void __launch_bounds__(256) max_pool_5_##S(MaxPoolArgs a) { max_pool_5<T>(a); } \
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
