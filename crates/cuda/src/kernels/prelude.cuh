// What every kernel here builds on. NVRTC compiles without headers from the machine, so types and half-precision
// conversions are spelt out.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Storage types. A bf16 is the upper half of a float; an fp16 is converted by the card.
struct bf16 { u16 bits; };
struct fp16 { u16 bits; };

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __uint_as_float(u32(v.bits) << 16); }
__device__ __forceinline__ float to_float(fp16 v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
}

template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
// Round to nearest even; NaN stays NaN.
template <> __device__ __forceinline__ bf16 from_float<bf16>(float v) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
    return r;
}
template <> __device__ __forceinline__ fp16 from_float<fp16>(float v) {
    fp16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
    return r;
}

// Sixteen bytes of channels: 8 of a half type, 4 of float.
template <typename T> struct alignas(16) Pack {
    static constexpr int SIZE = 16 / sizeof(T);
    T v[SIZE];
};
template <typename T> __device__ __forceinline__ Pack<T> load(const T* p) {
    return *reinterpret_cast<const Pack<T>*>(p);
}
template <typename T> __device__ __forceinline__ void store(T* p, const Pack<T>& v) {
    *reinterpret_cast<Pack<T>*>(p) = v;
}

// Activations, by graph::Activation: identity, SiLU, ReLU, leaky ReLU.
enum Act { IDENTITY = 0, SILU = 1, RELU = 2, LEAKY = 3 };
__device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + __expf(-v)); }
__device__ __forceinline__ float act(int kind, float slope, float v) {
    switch (kind) {
    case SILU: return v * sigmoid(v);
    case RELU: return v > 0.0f ? v : 0.0f;
    case LEAKY: return v > 0.0f ? v : slope * v;
    default: return v;
    }
}
__device__ __forceinline__ float act_grad(int kind, float slope, float v) {
    switch (kind) {
    case SILU: {
        float s = sigmoid(v);
        return s * (1.0f + v * (1.0f - s));
    }
    case RELU: return v > 0.0f ? 1.0f : 0.0f;
    case LEAKY: return v > 0.0f ? 1.0f : slope;
    default: return 1.0f;
    }
}

// A tensor as view.rs describes it.
struct View {
    u64 at;
    u32 n, h, w, c;
    u32 pitch;
    u32 unused;
};
template <typename T> __device__ __forceinline__ T* data(const View& v) { return reinterpret_cast<T*>(v.at); }
