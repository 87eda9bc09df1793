// The commit over flat buffers: norm of the gradient, clipping, optimiser, moving averages, the half-precision copy of
// the weights, and the gradient cleared. A gradient whose norm is not finite changes nothing but is cleared, and the
// loss scale halved; after many that were, the scale doubles. Scales are powers of two, so that dividing by them is
// exact.
//
// A block works on one chunk of a parameter. Squares are summed in float64, over threads in a tree, over chunks in
// their order. Each product and sum of the update is rounded as the CPU rounds it.
//
// The norm reads 4 bytes an element; SGD with an average and a bf16 copy reads 16 and writes 18: 26 million are 0.1 +
// 0.9 GB, 237 us at 4.2 TB/s, the rate of a copy. Measured on an H200, 2026-11-30: 267 us.

struct Chunk {
    u64 offset; // in its flat buffer
    u32 len;
    u32 kind; // group 0, 1, 2; FROZEN; BUFFER: running statistics
};
static constexpr u32 FROZEN = 3, BUFFER = 4;

struct Group {
    float lr, momentum, one_minus_momentum, decay;
    float shrink; // 1 - lr * decay
    float size;   // lr over the first moment's bias correction
};

struct Scalars {
    Group groups[3];
    float beta2, one_minus_beta2;
    float correction; // square root of the second moment's
    float eps;
    float keep, take; // of the averages: decay, 1 - decay
    u32 average;      // 0: none is kept
    u32 unused;
    double clip;
};

struct LossScale {
    float scale;
    u32 good; // commits that were applied since it was changed
};

struct Report {
    double norm;
    float scale; // what the gradient is multiplied by: clip over loss scale
    u32 applied;
    float loss_scale; // of the next gradient
    u32 unused;
};

struct CommitArgs {
    u64 chunks, scalars, report, partials;
    u64 loss_scale; // 0: none
    u64 weights, gradients, average, state[3];
    u64 buffers, average_buffers;
    u64 half_copy; // 0: none
    u32 half_is_bf16;
    u32 count; // chunks
    float most_scale;
    u32 grows_after;
};

template <typename T> __device__ __forceinline__ T* flat(u64 base, u64 offset) {
    return reinterpret_cast<T*>(base) + offset;
}

// Sum over a block of 256 threads, in a tree; thread 0 has it.
__device__ __forceinline__ double sum_block(double v) {
    __shared__ double part[256];
    u32 me = threadIdx.x;
    part[me] = v;
    __syncthreads();
    for (u32 s = 128; s > 0; s >>= 1) {
        if (me < s) part[me] += part[me + s];
        __syncthreads();
    }
    return part[0];
}

extern "C" __global__ void __launch_bounds__(256) commit_norm(CommitArgs a) {
    Chunk chunk = reinterpret_cast<const Chunk*>(a.chunks)[blockIdx.x];
    double sum = 0.0;
    if (chunk.kind < FROZEN) {
        const float* g = flat<const float>(a.gradients, chunk.offset);
        u32 whole = chunk.len / 4;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < whole; i += 256) {
            float4 v = reinterpret_cast<const float4*>(g)[i];
            double x = v.x, y = v.y, z = v.z, w = v.w;
            sum += x * x;
            sum += y * y;
            sum += z * z;
            sum += w * w;
        }
        u32 rest = whole * 4 + threadIdx.x;
        if (rest < chunk.len) sum += double(g[rest]) * double(g[rest]);
    }
    sum = sum_block(sum);
    if (threadIdx.x == 0) reinterpret_cast<double*>(a.partials)[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) commit_finish_norm(CommitArgs a) {
    const double* partials = reinterpret_cast<const double*>(a.partials);
    double sum = 0.0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < a.count; i += 256) sum += partials[i];
    sum = sum_block(sum);
    if (threadIdx.x == 0) {
        const Scalars& s = *reinterpret_cast<const Scalars*>(a.scalars);
        LossScale* kept = reinterpret_cast<LossScale*>(a.loss_scale);
        LossScale now = {1.0f, 0};
        if (kept) now = *kept;
        float unscale = 1.0f / now.scale;
        double norm = sqrt(sum) * double(unscale);
        double scale = s.clip / (norm + 1e-6);
        Report report;
        report.norm = norm;
        report.scale = float(scale < 1.0 ? scale : 1.0) * unscale;
        report.applied = isfinite(norm) ? 1 : 0;
        if (kept) {
            if (!report.applied) {
                now = {fmaxf(now.scale * 0.5f, 1.0f), 0};
            } else if (++now.good >= a.grows_after) {
                now = {fminf(now.scale * 2.0f, a.most_scale), 0};
            }
            *kept = now;
        }
        report.loss_scale = now.scale;
        report.unused = 0;
        *reinterpret_cast<Report*>(a.report) = report;
    }
}

enum Rule { SGD, ADAM, ADAMW, LION };

__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }

// One element: gradient, weight and state of a rule.
template <int RULE>
__device__ __forceinline__ void update(const Scalars& s, const Group& k, float scale, float g, float& w, float& s0,
                                       float& s1, float& s2) {
    g = mul(g, scale);
    if (RULE == SGD) {
        g = plus(g, mul(k.decay, w));
        s0 = plus(mul(k.momentum, s0), g);
        w = plus(w, -mul(k.lr, plus(g, mul(k.momentum, s0))));
    }
    if (RULE == ADAM) {
        g = plus(g, mul(k.decay, w));
        s0 = plus(mul(k.momentum, s0), mul(k.one_minus_momentum, g));
        s1 = plus(mul(s.beta2, s1), mul(mul(s.one_minus_beta2, g), g));
        w = plus(w, -(mul(k.size, s0) / plus(sqrtf(s1) / s.correction, s.eps)));
    }
    if (RULE == ADAMW) {
        w = mul(w, k.shrink);
        s0 = plus(mul(k.momentum, s0), mul(k.one_minus_momentum, g));
        s1 = plus(mul(s.beta2, s1), mul(mul(s.one_minus_beta2, g), g));
        s2 = fmaxf(s2, s1);
        w = plus(w, -(mul(k.size, s0) / plus(sqrtf(s2) / s.correction, s.eps)));
    }
    if (RULE == LION) {
        w = mul(w, k.shrink);
        float direction = plus(mul(k.momentum, s0), mul(k.one_minus_momentum, g));
        if (direction != 0.0f) w = plus(w, -mul(k.lr, direction > 0.0f ? 1.0f : -1.0f));
        s0 = plus(mul(s.beta2, s0), mul(s.one_minus_beta2, g));
    }
}

// Four neighbours, the last ones perhaps beyond the chunk's end.
struct Four {
    float v[4];
    __device__ __forceinline__ void read(const float* p, u32 i, u32 len) {
        if (i + 4 <= len) {
            float4 q = *reinterpret_cast<const float4*>(p + i);
            v[0] = q.x;
            v[1] = q.y;
            v[2] = q.z;
            v[3] = q.w;
        } else {
            for (u32 k = 0; k < 4; k++) v[k] = i + k < len ? p[i + k] : 0.0f;
        }
    }
    __device__ __forceinline__ void write(float* p, u32 i, u32 len) const {
        if (i + 4 <= len) {
            *reinterpret_cast<float4*>(p + i) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
            for (u32 k = 0; k < 4 && i + k < len; k++) p[i + k] = v[k];
        }
    }
};

__device__ __forceinline__ void average(const Scalars& s, float* averages, const Four& values, u32 i, u32 len) {
    Four e;
    e.read(averages, i, len);
    for (int k = 0; k < 4; k++) e.v[k] = plus(mul(s.keep, e.v[k]), mul(s.take, values.v[k]));
    e.write(averages, i, len);
}

__device__ __forceinline__ void write_half(const CommitArgs& a, u64 offset, const Four& w, u32 i, u32 len) {
    for (u32 k = 0; k < 4 && i + k < len; k++) {
        u16 bits = a.half_is_bf16 ? from_float<bf16>(w.v[k]).bits : from_float<fp16>(w.v[k]).bits;
        flat<u16>(a.half_copy, offset)[i + k] = bits;
    }
}

template <int RULE> __device__ __forceinline__ void commit(const CommitArgs& a) {
    constexpr int STATES = RULE == ADAMW ? 3 : RULE == ADAM ? 2 : 1;
    Chunk chunk = reinterpret_cast<const Chunk*>(a.chunks)[blockIdx.x];
    const Scalars* scalars = reinterpret_cast<const Scalars*>(a.scalars);
    Scalars s = *scalars;
    Report report = *reinterpret_cast<const Report*>(a.report);
    bool apply = report.applied != 0, averaged = apply && s.average != 0;
    u64 offset = chunk.offset;
    u32 len = chunk.len;
    if (chunk.kind == BUFFER) {
        if (!averaged) return;
        for (u32 i = threadIdx.x * 4; i < len; i += 1024) {
            Four v;
            v.read(flat<float>(a.buffers, offset), i, len);
            average(s, flat<float>(a.average_buffers, offset), v, i, len);
        }
        return;
    }
    float* gradients = flat<float>(a.gradients, offset);
    Four zero = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (!apply) {
        for (u32 i = threadIdx.x * 4; i < len; i += 1024) zero.write(gradients, i, len);
        return;
    }
    float* weights = flat<float>(a.weights, offset);
    if (chunk.kind == FROZEN) {
        for (u32 i = threadIdx.x * 4; i < len; i += 1024) {
            Four w;
            w.read(weights, i, len);
            if (averaged) average(s, flat<float>(a.average, offset), w, i, len);
            zero.write(gradients, i, len);
        }
        return;
    }
    Group group = scalars->groups[chunk.kind];
    for (u32 i = threadIdx.x * 4; i < len; i += 1024) {
        Four g, w, state[3] = {zero, zero, zero}, e = zero;
        g.read(gradients, i, len);
        w.read(weights, i, len);
#pragma unroll
        for (int k = 0; k < STATES; k++) state[k].read(flat<float>(a.state[k], offset), i, len);
        if (averaged) e.read(flat<float>(a.average, offset), i, len);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            update<RULE>(s, group, report.scale, g.v[k], w.v[k], state[0].v[k], state[1].v[k], state[2].v[k]);
            e.v[k] = plus(mul(s.keep, e.v[k]), mul(s.take, w.v[k]));
        }
        w.write(weights, i, len);
#pragma unroll
        for (int k = 0; k < STATES; k++) state[k].write(flat<float>(a.state[k], offset), i, len);
        if (averaged) e.write(flat<float>(a.average, offset), i, len);
        zero.write(gradients, i, len);
        if (a.half_copy != 0) {
            if (i + 4 <= len) {
                uint2 words = a.half_is_bf16
                                  ? make_uint2(word(bf16{}, w.v[0], w.v[1]), word(bf16{}, w.v[2], w.v[3]))
                                  : make_uint2(word(fp16{}, w.v[0], w.v[1]), word(fp16{}, w.v[2], w.v[3]));
                *reinterpret_cast<uint2*>(flat<u16>(a.half_copy, offset) + i) = words;
            } else {
                write_half(a, offset, w, i, len);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) commit_sgd(CommitArgs a) { commit<SGD>(a); }
extern "C" __global__ void __launch_bounds__(256) commit_adam(CommitArgs a) { commit<ADAM>(a); }
extern "C" __global__ void __launch_bounds__(256) commit_adamw(CommitArgs a) { commit<ADAMW>(a); }
extern "C" __global__ void __launch_bounds__(256) commit_lion(CommitArgs a) { commit<LION>(a); }
