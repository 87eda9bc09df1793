// y (+)= x between any two storage types and pitches: copies, casts, packing a channel range and unpacking it, adding
// weight gradients to the flat gradient (a tensor of one row).
//
// Reads x, writes y: 64x160x160x32 from bf16 to bf16 is 210 MB, 50 us at 4.2 TB/s, which this card reaches at best;
// adding reads y too, 315 MB, 75 us. Measured on an H200, 2026-11-30: 55 us, and 77 us.

struct CopyArgs {
    View x, y;
    Tiling t;
    u32 accumulate;
    u32 unused;
};

template <typename From, typename To> __device__ __forceinline__ void copy(const CopyArgs& a) {
    constexpr u32 U = 4;
    Part part(a.t, pixels_of(a.y), a.y.c);
    if (!part.inside) return;
    u32 rows = a.t.rows, c = part.channel();
    for (u32 p = part.first + part.row; p < part.end; p += U * rows) {
        Eight<From> x[U];
        Eight<To> old[U];
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            u32 q = p + u * rows;
            if (q < part.end) {
                x[u] = load8(at<From>(a.x, q, c));
                if (a.accumulate) old[u] = load8(at<To>(a.y, q, c));
            }
        }
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            u32 q = p + u * rows;
            if (q >= part.end) break;
            float v[8], o[8];
            unpack(x[u], v);
            if (a.accumulate) {
                unpack(old[u], o);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = o[i] + v[i];
            }
            store8(at<To>(a.y, q, c), pack<To>(v));
        }
    }
}

#define DEFINE(From, S, To, D) \
    extern "C" __global__ void __launch_bounds__(256) copy_##S##_##D(CopyArgs a) { copy<From, To>(a); }
#define DEFINE_FROM(From, S) DEFINE(From, S, float, f32) DEFINE(From, S, bf16, bf16) DEFINE(From, S, fp16, f16)
EACH_TYPE(DEFINE_FROM)
