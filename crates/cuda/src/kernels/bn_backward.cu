// Gradients of the inputs of a batch norm with its activation, written or added:
// dx_i = gamma_i / sqrt(var_i + eps) * (dz - s1 / N - xhat_i * s2_i / N), with bn_reduce.cu's sums and dz.
//
// Reads dy and each x, writes each dx: one branch of 64x160x160x32 in bf16 is 315 MB, 75 us at 4.2 TB/s, the rate of a
// copy; two are 524 MB, 125 us. Measured on an H200, 2026-11-30, with SiLU: 91 us, and 150 us.

struct BnBackwardArgs {
    View dy;
    Branch branches[2];
    View dx[2];
    u64 s1;
    u64 s2[2];
    u32 accumulate[2];
    Tiling t;
    float eps, slope;
    float inverse; // 1 / N
    u32 unused;
};

template <typename T, bool SMOOTH, int BRANCHES> __device__ __forceinline__ void bn_backward(const BnBackwardArgs& a) {
    constexpr u32 U = in_flight<T>(2 / BRANCHES);
    Part part(a.t, pixels_of(a.dy), a.dy.c);
    if (!part.inside) return;
    u32 rows = a.t.rows, c = part.channel();
    Constants<BRANCHES> k(a.branches, c, a.eps);
    // dx = scale * ((dz - m1) - (x - mean) * m2), m2 with one more 1 / sqrt(var + eps).
    float m1[8], m2[BRANCHES][8];
    values8(a.s1, c, m1);
#pragma unroll
    for (int i = 0; i < 8; i++) m1[i] *= a.inverse;
#pragma unroll
    for (int b = 0; b < BRANCHES; b++) {
        float var[8];
        values8(a.branches[b].var, c, var);
        values8(a.s2[b], c, m2[b]);
#pragma unroll
        for (int i = 0; i < 8; i++) m2[b][i] = m2[b][i] * a.inverse * rsqrtf(var[i] + a.eps);
    }
    for (u32 p = part.first + part.row; p < part.end; p += U * rows) {
        Eight<T> dy[U], x[BRANCHES][U], old[BRANCHES][U];
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            u32 q = p + u * rows;
            if (q < part.end) {
                dy[u] = load8(at<T>(a.dy, q, c));
#pragma unroll
                for (int b = 0; b < BRANCHES; b++) {
                    x[b][u] = load8(at<T>(a.branches[b].x, q, c));
                    if (a.accumulate[b]) old[b][u] = load8(at<T>(a.dx[b], q, c));
                }
            }
        }
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            u32 q = p + u * rows;
            if (q >= part.end) break;
            float dz[8], d[BRANCHES][8];
            unpack(dy[u], dz);
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
                dz[i] = activate_grad<SMOOTH>(z, a.slope, dz[i]) - m1[i];
            }
#pragma unroll
            for (int b = 0; b < BRANCHES; b++) {
#pragma unroll
                for (int i = 0; i < 8; i++) d[b][i] = k.scale[b][i] * fmaf(-d[b][i], m2[b][i], dz[i]);
                if (a.accumulate[b]) {
                    float v[8];
                    unpack(old[b][u], v);
#pragma unroll
                    for (int i = 0; i < 8; i++) d[b][i] += v[i];
                }
                store8(at<T>(a.dx[b], q, c), pack<T>(d[b]));
            }
        }
    }
}

#define DEFINE(T, S, SMOOTH, NAME, BRANCHES) \
    extern "C" __global__ void __launch_bounds__(256, 2) bn_backward_##NAME##_##BRANCHES##_##S(BnBackwardArgs a) { \
        bn_backward<T, SMOOTH, BRANCHES>(a); \
    }
EACH_TYPE_AND_FORM(DEFINE)
