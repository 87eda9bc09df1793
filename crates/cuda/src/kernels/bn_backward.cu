// Gradients of the inputs of a batch norm with its activation, written or added:
// dx_i = gamma_i / sqrt(var_i + eps) * (dz - s1 / N - xhat_i * s2_i / N), with bn_reduce.cu's sums and dz.
//
// It begins with the last pixels, with which the sums ended; the second-level cache keeps dx rather than dy and x.
//
// Reads dy and each x, writes each dx: one branch of 64x160x160x32 in bf16 is 315 MB, 75 us at 4.2 TB/s, the rate of a
// copy; two are 524 MB, 125 us. On an H200, 2026-12-01, with SiLU: 81 us, and 135 us.

struct BnBackwardArgs {
    View dy;
    Branch branches[2];
    View dx[2];
    u64 s1;
    u64 s2[2];
    u32 accumulate[2];
    Sweep sweep;
    float eps, slope;
    float inverse; // 1 / N
    u32 unused;
};

template <typename T, bool SMOOTH, int BRANCHES> __device__ __forceinline__ void bn_backward(const BnBackwardArgs& a) {
    extern __shared__ uint4 room[];
    Share share(a.sweep, pixels_of(a.dy), a.dy.c);
    if (!share.inside) return;
    u32 c = share.channel(), next = share.first, last = pixels_of(a.dy) - 1;
    using Place = Ring<T, 1 + BRANCHES, SWEEPING>;
    constexpr u32 U = Place::DEPTH;
    Place ring(room);
    auto request = [&](u32 place) {
        if (next < share.end) {
            ring.template request<true>(place, 0, at<T>(a.dy, last - next, c));
#pragma unroll
            for (int b = 0; b < BRANCHES; b++)
                ring.template request<true>(place, 1 + b, at<T>(a.branches[b].x, last - next, c));
        }
        end_group();
        next += share.step;
    };
#pragma unroll
    for (u32 u = 0; u < U; u++) request(u);
    // Behind the first requests, so that both are in flight together.
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
    u32 place = 0;
#pragma unroll 1
    for (u32 p = share.first; p < share.end; p += share.step) {
        wait_groups<U - 1>();
        float dz[8], d[BRANCHES][8];
        ring.read(place, 0, dz);
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) ring.read(place, 1 + b, d[b]);
        request(place);
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
            T* to = at<T>(a.dx[b], last - p, c);
#pragma unroll
            for (int i = 0; i < 8; i++) d[b][i] = k.scale[b][i] * fmaf(-d[b][i], m2[b][i], dz[i]);
            if (a.accumulate[b]) {
                float old[8];
                unpack(load8(to), old);
#pragma unroll
                for (int i = 0; i < 8; i++) d[b][i] += old[i];
            }
            store8(to, pack<T>(d[b]));
        }
        place = (place + 1) % U;
    }
}

#define DEFINE(T, S, SMOOTH, NAME, BRANCHES) \
    extern "C" __global__ void __launch_bounds__(SWEEPING, 2) bn_backward_##NAME##_##BRANCHES##_##S(BnBackwardArgs a) { \
        bn_backward<T, SMOOTH, BRANCHES>(a); \
    }
EACH_TYPE_AND_FORM(DEFINE)
