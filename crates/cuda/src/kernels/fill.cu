// y = 0 over a channel range.
//
// Writes its bytes: 64x160x160x32 in bf16 are 105 MB, 25 us at 4.2 TB/s, the rate of a copy. No time on a card is kept.

struct FillArgs {
    View y;
    Tiling t;
};

template <typename T> __device__ __forceinline__ void fill_zero(const FillArgs& a) {
    Part part(a.t, pixels_of(a.y), a.y.c);
    if (!part.inside) return;
#pragma unroll 4
    for (u32 p = part.first + part.row; p < part.end; p += a.t.rows)
        store8(at<T>(a.y, p, part.channel()), Eight<T>{});
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) fill_zero_##S(FillArgs a) { fill_zero<T>(a); }
EACH_TYPE(DEFINE)
