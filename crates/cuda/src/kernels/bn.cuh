// What the kernels of a batch norm with its activation share. Comes after tiles.cuh.

// One normalised input; the addresses are of float vectors, one value a channel.
struct Branch {
    View x;
    u64 mean, var, gamma, beta;
};

// Constants of a thread's eight channels: z = beta + sum over the branches of (x - mean) * scale.
template <int BRANCHES> struct Constants {
    float mean[BRANCHES][8], scale[BRANCHES][8], beta[8];
    __device__ __forceinline__ Constants(const Branch (&branches)[2], u32 channel, float eps) {
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) {
            float var[8], gamma[8], shift[8];
            values8(branches[b].mean, channel, mean[b]);
            values8(branches[b].var, channel, var);
            values8(branches[b].gamma, channel, gamma);
            values8(branches[b].beta, channel, shift);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                scale[b][i] = gamma[i] * rsqrtf(var[i] + eps);
                beta[i] = b == 0 ? shift[i] : beta[i] + shift[i];
            }
        }
    }
};

// A kernel for each storage type, activation family and number of branches.
#define EACH_TYPE_AND_FORM(DEFINE) \
    DEFINE(float, f32, true, silu, 1) DEFINE(float, f32, true, silu, 2) \
    DEFINE(float, f32, false, leaky, 1) DEFINE(float, f32, false, leaky, 2) \
    DEFINE(bf16, bf16, true, silu, 1) DEFINE(bf16, bf16, true, silu, 2) \
    DEFINE(bf16, bf16, false, leaky, 1) DEFINE(bf16, bf16, false, leaky, 2) \
    DEFINE(fp16, f16, true, silu, 1) DEFINE(fp16, f16, true, silu, 2) \
    DEFINE(fp16, f16, false, leaky, 1) DEFINE(fp16, f16, false, leaky, 2)
