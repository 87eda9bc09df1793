// A convolution by its definition, for what no library serves: any kernel, stride, padding, groups, pitch and format, and
// pictures of bytes. One thread a result (weight gradients: 8 threads a weight), float32 sums in one order. Bound by
// loads of operands that only the caches share: far from a matrix product's speed.

struct Direct {
    u64 x, w, y;
    u32 images, height, width, inputs, outputs;
    u32 out_height, out_width;
    u32 kernel, stride, pad, groups;
    u32 input_pitch, output_pitch;
    u32 add;
};

template <typename T> __device__ __forceinline__ void put(T* at, float v, u32 add) {
    *at = from_float<T>(add ? to_float(*at) + v : v);
}

// An operand of format T, and a picture's byte as one.
template <typename T> __device__ __forceinline__ float value(T v) { return to_float(v); }
template <typename T> __device__ __forceinline__ float value(u8 v) {
    return to_float(from_float<T>(__fdiv_rn(float(v), 255.0f)));
}

// Channels that lie in memory: of a picture three, and those of the weights beyond them are padding.
template <typename X> __device__ __forceinline__ u32 stored(u32 in) { return sizeof(X) == 1 ? 3 : in; }

// y[n, oy, ox, o] = sum over taps and the group's inputs of x * w[o, ky, kx, i].
template <typename T, typename O, typename X = T> __device__ __forceinline__ void forward(const Direct& a) {
    u32 in = a.inputs / a.groups, out = a.outputs / a.groups;
    u64 total = u64(a.images) * a.out_height * a.out_width * a.outputs;
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < total; at += step) {
        u64 pixel = at / a.outputs;
        u32 o = u32(at - pixel * a.outputs);
        u32 ox = u32(pixel % a.out_width), oy = u32(pixel / a.out_width % a.out_height);
        u64 n = pixel / a.out_width / a.out_height;
        const T* w = reinterpret_cast<const T*>(a.w) + u64(o) * a.kernel * a.kernel * in;
        const X* x = reinterpret_cast<const X*>(a.x) + o / out * in;
        float sum = 0.0f;
        for (u32 ky = 0; ky < a.kernel; ky++) {
            i64 iy = i64(oy) * a.stride + ky - a.pad;
            if (iy < 0 || iy >= a.height) continue;
            for (u32 kx = 0; kx < a.kernel; kx++) {
                i64 ix = i64(ox) * a.stride + kx - a.pad;
                if (ix < 0 || ix >= a.width) continue;
                const X* row = x + ((n * a.height + iy) * a.width + ix) * a.input_pitch;
                const T* tap = w + (ky * a.kernel + kx) * in;
                float part = 0.0f;
                for (u32 i = 0; i < stored<X>(in); i++) part = fmaf(value<T>(row[i]), to_float(tap[i]), part);
                sum += part;
            }
        }
        put(reinterpret_cast<O*>(a.y) + pixel * a.output_pitch + o, sum, a.add);
    }
}

// dx[n, iy, ix, i] = sum over taps that reach it and the group's outputs of dy * w[o, ky, kx, i].
template <typename T> __device__ __forceinline__ void data_gradient(const Direct& a) {
    u32 in = a.inputs / a.groups, out = a.outputs / a.groups;
    u64 total = u64(a.images) * a.height * a.width * a.inputs;
    u64 step = u64(gridDim.x) * blockDim.x;
    u64 filter = u64(a.kernel) * a.kernel * in;
    for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < total; at += step) {
        u64 pixel = at / a.inputs;
        u32 c = u32(at - pixel * a.inputs), group = c / in, i = c - group * in;
        u32 ix = u32(pixel % a.width), iy = u32(pixel / a.width % a.height);
        u64 n = pixel / a.width / a.height;
        const T* w = reinterpret_cast<const T*>(a.w) + u64(group) * out * filter + i;
        const T* dy = reinterpret_cast<const T*>(a.y) + group * out;
        float sum = 0.0f;
        for (u32 ky = 0; ky < a.kernel; ky++) {
            i64 sy = i64(iy) + a.pad - ky;
            if (sy < 0 || sy % a.stride != 0 || sy / a.stride >= a.out_height) continue;
            for (u32 kx = 0; kx < a.kernel; kx++) {
                i64 sx = i64(ix) + a.pad - kx;
                if (sx < 0 || sx % a.stride != 0 || sx / a.stride >= a.out_width) continue;
                const T* row = dy + ((n * a.out_height + sy / a.stride) * a.out_width + sx / a.stride) * a.output_pitch;
                const T* tap = w + (ky * a.kernel + kx) * in;
                float part = 0.0f;
                for (u32 o = 0; o < out; o++) part = fmaf(to_float(row[o]), to_float(tap[o * filter]), part);
                sum += part;
            }
        }
        put(reinterpret_cast<T*>(a.x) + pixel * a.input_pitch + c, sum, a.add);
    }
}

// dw[o, ky, kx, i] = sum over output pixels of x * dy. A block makes 32 inputs of one output and tap; its 8 rows of
// threads take every eighth row of output pixels, and their sums are added from the first to the last.
template <typename T, typename X = T> __device__ __forceinline__ void weight_gradient(const Direct& a) {
    __shared__ float sums[8][32];
    u32 in = a.inputs / a.groups, out = a.outputs / a.groups;
    u32 taps = a.kernel * a.kernel, blocks = (in + 31) / 32;
    u64 total = u64(a.outputs) * taps * blocks;
    u32 lane = threadIdx.x % 32, row = threadIdx.x / 32;
    for (u64 block = blockIdx.x; block < total; block += gridDim.x) {
        u32 i = u32(block % blocks) * 32 + lane;
        u32 tap = u32(block / blocks % taps), o = u32(block / blocks / taps);
        u32 ky = tap / a.kernel, kx = tap % a.kernel;
        const X* x = reinterpret_cast<const X*>(a.x) + o / out * in + i;
        const T* dy = reinterpret_cast<const T*>(a.y) + o;
        float sum = 0.0f;
        if (i < stored<X>(in)) {
            u64 lines = u64(a.images) * a.out_height;
            for (u64 line = row; line < lines; line += 8) {
                u64 n = line / a.out_height;
                i64 iy = i64(line % a.out_height) * a.stride + ky - a.pad;
                if (iy < 0 || iy >= a.height) continue;
                float part = 0.0f;
                for (u32 ox = 0; ox < a.out_width; ox++) {
                    i64 ix = i64(ox) * a.stride + kx - a.pad;
                    if (ix < 0 || ix >= a.width) continue;
                    float xv = value<T>(x[((n * a.height + iy) * a.width + ix) * a.input_pitch]);
                    part = fmaf(xv, to_float(dy[(line * a.out_width + ox) * a.output_pitch]), part);
                }
                sum += part;
            }
        }
        sums[row][lane] = sum;
        __syncthreads();
        if (row == 0 && i < in) {
            for (u32 r = 1; r < 8; r++) sum += sums[r][lane];
            put(reinterpret_cast<float*>(a.w) + (u64(o) * taps + tap) * in + i, sum, a.add);
        }
        __syncthreads();
    }
}

#define DIRECT(NAME, T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256) forward_##NAME##_f32(Direct a) { forward<T, float>(a); }     \
    extern "C" __global__ void __launch_bounds__(256) data_##NAME(Direct a) { data_gradient<T>(a); }               \
    extern "C" __global__ void __launch_bounds__(256) weight_##NAME(Direct a) { weight_gradient<T>(a); }           \
    extern "C" __global__ void __launch_bounds__(256) forward_##NAME##_##NAME##_bytes(Direct a) {                  \
        forward<T, T, u8>(a);                                                                                      \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256) weight_##NAME##_bytes(Direct a) { weight_gradient<T, u8>(a); }
DIRECT(f32, float)
DIRECT(f16, fp16)
DIRECT(bf16, bf16)
extern "C" __global__ void __launch_bounds__(256) forward_f16_f16(Direct a) { forward<fp16, fp16>(a); }
extern "C" __global__ void __launch_bounds__(256) forward_bf16_bf16(Direct a) { forward<bf16, bf16>(a); }
