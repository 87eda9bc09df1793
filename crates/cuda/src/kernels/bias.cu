// y = act(y + bias) in place, and the bias's gradient: the sums of dy over all pixels, added to the flat gradient.
//
// The first reads and writes y: 64x160x160x32 in float32 is 420 MB, 100 us at 4.2 TB/s, the rate of a copy; the
// gradient reads dy once, in bf16 105 MB, 25 us. Measured on an H200, 2026-12-01: 110 us; the gradient not since it
// became one launch, as two 32 us.

struct BiasArgs {
    View y;
    u64 bias; // floats
    Tiling t;
    float slope;
    u32 unused;
};

// Sixteen bytes of channels: eight halves or four floats.
template <typename T> __device__ __forceinline__ void unpack16(const uint4& e, float (&v)[8]) {
    unpack(Eight<T>{e}, v);
}
template <typename T> __device__ __forceinline__ void unpack16(const uint4& e, float (&v)[4]) {
    v[0] = __uint_as_float(e.x);
    v[1] = __uint_as_float(e.y);
    v[2] = __uint_as_float(e.z);
    v[3] = __uint_as_float(e.w);
}
template <typename T> __device__ __forceinline__ uint4 pack16(const float (&v)[8]) { return pack<T>(v).words; }
template <typename T> __device__ __forceinline__ uint4 pack16(const float (&v)[4]) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
}

// Threads of a warp read and write neighbouring 16 bytes, of floats too: their tiling counts four as eight.
template <typename T, bool SMOOTH> __device__ __forceinline__ void bias(const BiasArgs& a) {
    constexpr u32 U = 4, SIZE = Pack<T>::SIZE;
    Part part(a.t, pixels_of(a.y), a.y.c * (8 / SIZE));
    if (!part.inside) return;
    u32 rows = a.t.rows, c = part.eight * SIZE;
    const float* biases = reinterpret_cast<const float*>(a.bias) + c;
    float shift[SIZE];
#pragma unroll
    for (u32 i = 0; i < SIZE; i += 4)
        unpack16<float>(*reinterpret_cast<const uint4*>(biases + i), reinterpret_cast<float(&)[4]>(shift[i]));
    for (u32 p = part.first + part.row; p < part.end; p += U * rows) {
        uint4 y[U];
#pragma unroll
        for (u32 u = 0; u < U; u++)
            if (p + u * rows < part.end) y[u] = *reinterpret_cast<const uint4*>(at<T>(a.y, p + u * rows, c));
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            u32 q = p + u * rows;
            if (q >= part.end) break;
            float v[SIZE];
            unpack16<T>(y[u], v);
#pragma unroll
            for (u32 i = 0; i < SIZE; i++) v[i] = activate<SMOOTH>(v[i] + shift[i], a.slope);
            *reinterpret_cast<uint4*>(at<T>(a.y, q, c)) = pack16<T>(v);
        }
    }
}

struct BiasGradArgs {
    View dy;
    Sums sums; // results: sums
    u64 gradient;
};

template <typename T> __device__ __forceinline__ void bias_grad(const BiasGradArgs& a) {
    extern __shared__ uint4 room[];
    const Sweep& s = a.sums.sweep;
    Share share(s, pixels_of(a.dy), a.dy.c);
    float mine[1][8], sums[1];
#pragma unroll
    for (int i = 0; i < 8; i++) mine[0][i] = 0.0f;
    if (share.inside) {
        u32 next = share.first;
        using Place = Ring<T, 1, SUMMING>;
        constexpr u32 U = Place::DEPTH;
        Place ring(room);
        auto request = [&](u32 place) {
            if (next < share.end) ring.request(place, 0, at<T>(a.dy, next, share.channel()));
            end_group();
            next += share.step;
        };
#pragma unroll
        for (u32 u = 0; u < U; u++) request(u);
        u32 place = 0;
#pragma unroll 2
        for (u32 p = share.first; p < share.end; p += share.step) {
            wait_groups<U - 1>();
            float v[8];
            ring.read(place, 0, v);
            request(place);
#pragma unroll
            for (int i = 0; i < 8; i++) mine[0][i] += v[i];
            place = (place + 1) % U;
        }
    }
    block_sums(s, mine, sums, room);
    write_results(a.sums, share, sums);
    if (!last_of_group(a.sums, share.group)) return;

    double total[1];
    group_sums(a.sums, share.group, total, room, [](u32, const float(&v)[1][4], double(&to)[1][4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) to[0][i] += double(v[0][i]);
    });
    u32 channel = channel_at(s, share.group, threadIdx.x / 4);
    if (threadIdx.x % 4 == 0 && threadIdx.x / 4 < 8 * s.tile && channel < a.dy.c)
        reinterpret_cast<float*>(a.gradient)[channel] += float(total[0]);
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) bias_silu_##S(BiasArgs a) { bias<T, true>(a); } \
    extern "C" __global__ void __launch_bounds__(256) bias_leaky_##S(BiasArgs a) { bias<T, false>(a); } \
    extern "C" __global__ void __launch_bounds__(SUMMING) bias_grad_##S(BiasGradArgs a) { bias_grad<T>(a); }
EACH_TYPE(DEFINE)
