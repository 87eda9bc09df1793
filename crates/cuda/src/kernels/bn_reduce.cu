// Sums of the gradient of a batch norm with its activation, for one or two branches: s1 = sum dz and, for each branch,
// s2 = sum dz * xhat, with dz = dy * act'(z), z recomputed from the stored x, and xhat = (x - mean) / sqrt(var + eps).
//
// Blocks sum dz and dz * (x - mean) over their pixels in float32; the finishing kernel sums the blocks in float64,
// scales, and adds s1 to the gradients of beta and s2 to those of gamma.
//
// Reads dy and each x: one branch of 64x160x160x32 in bf16 is 210 MB, 50 us at 4.2 TB/s, the rate of a copy; two are
// 315 MB, 75 us. Measured on an H200, 2026-11-30, with SiLU: 58.5 us, and 84.5 us.

struct BnReduceArgs {
    View dy;
    Branch branches[2];
    Tiling t;
    float eps, slope;
    u64 partials; // chunks x (1 + branches) x c
};

// Sums over a thread's pixels, through a ring in shared memory.
template <typename T, bool SMOOTH, int BRANCHES>
__device__ __forceinline__ void gradient_sums(const BnReduceArgs& a, const Part& part, float (&sums)[1 + BRANCHES][8],
                                              uint4* room) {
    u32 rows = a.t.rows, c = part.channel(), p = part.first + part.row;
    auto take = [&](const Constants<BRANCHES>& k, const float(&g)[8], float(&d)[BRANCHES][8]) {
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
    };
    using Place = Ring<T, 1 + BRANCHES>;
    constexpr u32 U = Place::DEPTH;
    Place ring(room);
    u32 next = p;
    auto request = [&](u32 place) {
        if (next < part.end) {
            ring.request(place, 0, at<T>(a.dy, next, c));
#pragma unroll
            for (int b = 0; b < BRANCHES; b++) ring.request(place, 1 + b, at<T>(a.branches[b].x, next, c));
        }
        end_group();
        next += rows;
    };
#pragma unroll
    for (u32 u = 0; u < U; u++) request(u);
    // Behind the first requests, so that both are in flight together.
    Constants<BRANCHES> k(a.branches, c, a.eps);
    // Places are counted at run time: unrolled over all of them, it takes more registers.
#pragma unroll 1
    for (u32 place = 0; p < part.end; p += rows) {
        wait_groups<U - 1>();
        float g[8], d[BRANCHES][8];
        ring.read(place, 0, g);
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) ring.read(place, 1 + b, d[b]);
        request(place);
        take(k, g, d);
        place = (place + 1) % U;
    }
}

template <typename T, bool SMOOTH, int BRANCHES>
__device__ __forceinline__ void bn_reduce(const BnReduceArgs& a) {
    constexpr u32 SUMS = sum_rows_size(1 + BRANCHES), COPIES = Ring<T, 1 + BRANCHES>::SIZE;
    __shared__ uint4 room[COPIES > SUMS ? COPIES : SUMS];
    Part part(a.t, pixels_of(a.dy), a.dy.c);
    float sums[1 + BRANCHES][8];
#pragma unroll
    for (int s = 0; s <= BRANCHES; s++)
#pragma unroll
        for (int i = 0; i < 8; i++) sums[s][i] = 0.0f;
    if (part.inside) gradient_sums<T, SMOOTH, BRANCHES>(a, part, sums, room);
    __syncthreads();
    sum_rows(a.t, part.row, sums, room);
    if (part.row == 0 && part.inside) {
        float* out = reinterpret_cast<float*>(a.partials) + u64(blockIdx.x) * (1 + BRANCHES) * a.dy.c + part.channel();
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

template <int BRANCHES> __device__ __forceinline__ void bn_reduce_finish(const BnReduceFinishArgs& a) {
    u32 channel = blockIdx.x * 8 + threadIdx.x % 8;
    float var[BRANCHES];
#pragma unroll
    for (int b = 0; b < BRANCHES; b++) var[b] = reinterpret_cast<const float*>(a.var[b])[channel];
    double sums[1 + BRANCHES];
    sum_chunks(reinterpret_cast<const float*>(a.partials), a.chunks, a.channels, channel, sums);
    if (threadIdx.x >= 8) return;
    float s1 = float(sums[0]);
    reinterpret_cast<float*>(a.s1)[channel] = s1;
#pragma unroll
    for (int b = 0; b < BRANCHES; b++) {
        float s2 = float(sums[1 + b] * double(rsqrtf(var[b] + a.eps)));
        reinterpret_cast<float*>(a.s2[b])[channel] = s2;
        if (a.gamma_grad[b] != 0) reinterpret_cast<float*>(a.gamma_grad[b])[channel] += s2;
        if (a.beta_grad[b] != 0) reinterpret_cast<float*>(a.beta_grad[b])[channel] += s1;
    }
}
extern "C" __global__ void __launch_bounds__(1024) bn_reduce_finish(BnReduceFinishArgs a) {
    if (a.branches == 1) bn_reduce_finish<1>(a);
    else bn_reduce_finish<2>(a);
}

#define DEFINE(T, S, SMOOTH, NAME, BRANCHES) \
    extern "C" __global__ void __launch_bounds__(256, BRANCHES == 1 ? 3 : 2) \
        bn_reduce_##NAME##_##BRANCHES##_##S(BnReduceArgs a) { \
        bn_reduce<T, SMOOTH, BRANCHES>(a); \
    }
EACH_TYPE_AND_FORM(DEFINE)
