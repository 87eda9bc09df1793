// y = act(y + bias) in place, and the bias's gradient: the sums of dy over all pixels, added to the flat gradient.
//
// The first reads and writes y: 64x160x160x32 in float32 is 420 MB, 100 us at 4.2 TB/s, the rate of a copy; the
// gradient reads dy once, in bf16 105 MB, 25 us. Measured on an H200, 2026-12-01: 110 us and
// 32 us.

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
    Tiling t;
    u64 partials; // chunks x c
};

template <typename T> __device__ __forceinline__ void bias_grad(const BiasGradArgs& a) {
    constexpr u32 U = in_flight<T>(8);
    Part part(a.t, pixels_of(a.dy), a.dy.c);
    u32 rows = a.t.rows, c = part.channel();
    float sum[1][8];
#pragma unroll
    for (int i = 0; i < 8; i++) sum[0][i] = 0.0f;
    if (part.inside) {
        for (u32 p = part.first + part.row; p < part.end; p += U * rows) {
            Eight<T> dy[U];
#pragma unroll
            for (u32 u = 0; u < U; u++)
                if (p + u * rows < part.end) dy[u] = load8(at<T>(a.dy, p + u * rows, c));
#pragma unroll
            for (u32 u = 0; u < U; u++) {
                if (p + u * rows >= part.end) break;
                float v[8];
                unpack(dy[u], v);
#pragma unroll
                for (int i = 0; i < 8; i++) sum[0][i] += v[i];
            }
        }
    }
    __shared__ uint4 room[sum_rows_size(1)];
    sum_rows(a.t, part.row, sum, room);
    if (part.row == 0 && part.inside) {
        float* out = reinterpret_cast<float*>(a.partials) + u64(blockIdx.x) * a.dy.c + c;
        store8(out, pack<float>(sum[0]));
    }
}

struct BiasGradFinishArgs {
    u64 partials;
    u64 gradient;
    u32 chunks, channels;
};

extern "C" __global__ void __launch_bounds__(1024) bias_grad_finish(BiasGradFinishArgs a) {
    u32 channel = blockIdx.x * 8 + threadIdx.x % 8;
    double sum[1];
    sum_chunks(reinterpret_cast<const float*>(a.partials), a.chunks, a.channels, channel, sum);
    if (threadIdx.x < 8) reinterpret_cast<float*>(a.gradient)[channel] += float(sum[0]);
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) bias_silu_##S(BiasArgs a) { bias<T, true>(a); } \
    extern "C" __global__ void __launch_bounds__(256) bias_leaky_##S(BiasArgs a) { bias<T, false>(a); } \
    extern "C" __global__ void __launch_bounds__(256) bias_grad_##S(BiasGradArgs a) { bias_grad<T>(a); }
EACH_TYPE(DEFINE)
