// Sums of the gradient of a batch norm with its activation, for one or two branches: s1 = sum dz and, for each branch,
// s2 = sum dz * xhat, with dz = dy * act'(z), z recomputed from the stored x, and xhat = (x - mean) / sqrt(var + eps).
//
// Blocks sum dz and dz * (x - mean) over their pixels in float32; the finishing kernel sums the blocks in float64,
// scales, and adds s1 to the gradients of beta and s2 to those of gamma.
//
// Reads dy and each x: one branch of 64x160x160x32 in bf16 is 210 MB, 44 us at 4.8 TB/s.

struct BnReduceArgs {
    View dy;
    Branch branches[2];
    Tiling t;
    float eps, slope;
    u64 partials; // chunks x (1 + branches) x c
};

template <typename T, bool SMOOTH, int BRANCHES> __device__ __forceinline__ void bn_reduce(const BnReduceArgs& a) {
    constexpr u32 U = in_flight<T>(2);
    Part part(a.t, pixels_of(a.dy), a.dy.c);
    u32 rows = a.t.rows, c = part.channel();
    float sums[1 + BRANCHES][8];
#pragma unroll
    for (int s = 0; s <= BRANCHES; s++)
#pragma unroll
        for (int i = 0; i < 8; i++) sums[s][i] = 0.0f;
    if (part.inside) {
        Constants<BRANCHES> k(a.branches, c, a.eps);
        for (u32 p = part.first + part.row; p < part.end; p += U * rows) {
            Eight<T> dy[U], x[BRANCHES][U];
#pragma unroll
            for (u32 u = 0; u < U; u++) {
                u32 q = p + u * rows;
                if (q < part.end) {
                    dy[u] = load8(at<T>(a.dy, q, c));
#pragma unroll
                    for (int b = 0; b < BRANCHES; b++) x[b][u] = load8(at<T>(a.branches[b].x, q, c));
                }
            }
#pragma unroll
            for (u32 u = 0; u < U; u++) {
                if (p + u * rows >= part.end) break;
                float g[8], d[BRANCHES][8];
                unpack(dy[u], g);
#pragma unroll
                for (int b = 0; b < BRANCHES; b++) unpack(x[b][u], d[b]);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float z = k.beta[i];
#pragma unroll
                    for (int b = 0; b < BRANCHES; b++) {
                        d[b][i] -= k.mean[b][i];
                        z = fmaf(d[b][i], k.scale[b][i], z);
                    }
                    float dz = activate_grad<SMOOTH>(z, a.slope, g[i]);
                    sums[0][i] += dz;
#pragma unroll
                    for (int b = 0; b < BRANCHES; b++) sums[1 + b][i] = fmaf(dz, d[b][i], sums[1 + b][i]);
                }
            }
        }
    }
    sum_rows(a.t, part.row, sums);
    if (part.row == 0 && part.inside) {
        float* out = reinterpret_cast<float*>(a.partials) + u64(blockIdx.x) * (1 + BRANCHES) * a.dy.c + c;
#pragma unroll
        for (int s = 0; s <= BRANCHES; s++) store8(out + u64(s) * a.dy.c, pack<float>(sums[s]));
    }
}

struct BnReduceFinishArgs {
    u64 partials;
    u64 s1;
    u64 s2[2];
    u64 var[2];
    // Places in the flat gradient, each 0 for none.
    u64 gamma_grad[2], beta_grad[2];
    u32 chunks, channels, branches;
    float eps;
};

extern "C" __global__ void __launch_bounds__(256) bn_reduce_finish(BnReduceFinishArgs a) {
    const float* partials = reinterpret_cast<const float*>(a.partials);
    u32 channel = blockIdx.x * 8 + threadIdx.x % 8;
    u32 count = 1 + a.branches;
    float s1 = float(sum_chunks(partials, a.chunks, count, 0, a.channels, channel));
#pragma unroll
    for (u32 b = 0; b < 2; b++) {
        if (b >= a.branches) break;
        double sum = sum_chunks(partials, a.chunks, count, 1 + b, a.channels, channel);
        if (threadIdx.x < 8) {
            float var = reinterpret_cast<const float*>(a.var[b])[channel];
            float s2 = float(sum * double(rsqrtf(var + a.eps)));
            reinterpret_cast<float*>(a.s2[b])[channel] = s2;
            if (a.gamma_grad[b] != 0) reinterpret_cast<float*>(a.gamma_grad[b])[channel] += s2;
            if (a.beta_grad[b] != 0) reinterpret_cast<float*>(a.beta_grad[b])[channel] += s1;
        }
    }
    if (threadIdx.x < 8) reinterpret_cast<float*>(a.s1)[channel] = s1;
}

#define DEFINE(T, S, SMOOTH, NAME, BRANCHES) \
    extern "C" __global__ void __launch_bounds__(256, BRANCHES == 1 ? 3 : 2) bn_reduce_##NAME##_##BRANCHES##_##S(BnReduceArgs a) { \
        bn_reduce<T, SMOOTH, BRANCHES>(a); \
    }
EACH_TYPE_AND_FORM(DEFINE)
