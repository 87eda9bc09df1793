// Rows of channels copied from one pitch to another: to = from, or to += from, with the format changed on the way.
// Serves packed copies of channel ranges, sums into them, casts of logits, and weight gradients added in float32. Reads
// and writes (with += reads twice) its bytes: a packed copy of 64 channels @80, batch 64, bf16 moves 105 MB, 29 us at
// 3.6 TB/s.

struct Copy {
    u64 from, to;
    u64 rows;
    u32 columns, from_pitch, to_pitch;
    u32 add;
};

// UNIT channels a thread: 8 where rows start at 16 bytes, else 1.
template <typename S, typename D, int UNIT> __device__ __forceinline__ void copy_units(const Copy& a) {
    u32 units = a.columns / UNIT;
    u64 total = a.rows * units;
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
        u64 row = i / units, column = (i - row * units) * UNIT;
        const S* from = reinterpret_cast<const S*>(a.from) + row * a.from_pitch + column;
        D* to = reinterpret_cast<D*>(a.to) + row * a.to_pitch + column;
        if constexpr (UNIT == 1) {
            float v = to_float(*from);
            *to = from_float<D>(a.add ? to_float(*to) + v : v);
        } else {
            Pack<S> in[UNIT / Pack<S>::SIZE];
            Pack<D> out[UNIT / Pack<D>::SIZE];
#pragma unroll
            for (int p = 0; p < UNIT / Pack<S>::SIZE; p++) in[p] = load(from + p * Pack<S>::SIZE);
            if (a.add) {
#pragma unroll
                for (int p = 0; p < UNIT / Pack<D>::SIZE; p++) out[p] = load(to + p * Pack<D>::SIZE);
            }
#pragma unroll
            for (int c = 0; c < UNIT; c++) {
                float v = to_float(in[c / Pack<S>::SIZE].v[c % Pack<S>::SIZE]);
                D& o = out[c / Pack<D>::SIZE].v[c % Pack<D>::SIZE];
                o = from_float<D>(a.add ? to_float(o) + v : v);
            }
#pragma unroll
            for (int p = 0; p < UNIT / Pack<D>::SIZE; p++) store(to + p * Pack<D>::SIZE, out[p]);
        }
    }
}

#define COPY(NAME, S, D)                                                                       \
    extern "C" __global__ void __launch_bounds__(256) copy_##NAME(Copy a) {                    \
        copy_units<S, D, 8>(a);                                                                \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) copy_##NAME##_unaligned(Copy a) {        \
        copy_units<S, D, 1>(a);                                                                \
    }
COPY(f32_f32, float, float)
COPY(f16_f16, fp16, fp16)
COPY(bf16_bf16, bf16, bf16)
COPY(f16_f32, fp16, float)
COPY(bf16_f32, bf16, float)

// Uniform values in (-1, 1) from a hash of the index: operands for timing. Zeros would run faster than data do.
struct Fill {
    u64 at;
    u64 elements;
    u32 seed;
    u32 unused;
};

template <typename T> __device__ __forceinline__ void fill(const Fill& a) {
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < a.elements; i += step) {
        u32 h = u32(i) * 0x9E3779B9u ^ u32(i >> 32) ^ a.seed;
        h ^= h >> 16;
        h *= 0x7FEB352Du;
        h ^= h >> 15;
        h *= 0x846CA68Bu;
        h ^= h >> 16;
        reinterpret_cast<T*>(a.at)[i] = from_float<T>(float(int(h)) * (1.0f / 2147483648.0f));
    }
}
extern "C" __global__ void __launch_bounds__(256) fill_f32(Fill a) { fill<float>(a); }
extern "C" __global__ void __launch_bounds__(256) fill_f16(Fill a) { fill<fp16>(a); }
extern "C" __global__ void __launch_bounds__(256) fill_bf16(Fill a) { fill<bf16>(a); }
