// How kernels over NHWC tensors split their work, and eight channels at a time. Comes after prelude.cuh.

// Eight channels as they lie in memory: 16 bytes of a half type, 32 of float.
template <typename T> struct Eight { uint4 words; };
template <> struct Eight<float> { uint4 words, more; };

template <typename T> __device__ __forceinline__ Eight<T> load8(const T* p) {
    return Eight<T>{*reinterpret_cast<const uint4*>(p)};
}
template <> __device__ __forceinline__ Eight<float> load8<float>(const float* p) {
    const uint4* q = reinterpret_cast<const uint4*>(p);
    return Eight<float>{q[0], q[1]};
}
template <typename T> __device__ __forceinline__ void store8(T* p, const Eight<T>& v) {
    *reinterpret_cast<uint4*>(p) = v.words;
}
template <> __device__ __forceinline__ void store8<float>(float* p, const Eight<float>& v) {
    uint4* q = reinterpret_cast<uint4*>(p);
    q[0] = v.words;
    q[1] = v.more;
}

// Two halves of a word to floats and back; the first lies in the lower bits. Round to nearest even.
__device__ __forceinline__ void halves(bf16, u32 w, float& a, float& b) {
    a = __uint_as_float(w << 16);
    b = __uint_as_float(w & 0xFFFF0000u);
}
__device__ __forceinline__ void halves(fp16, u32 w, float& a, float& b) {
    a = to_float(fp16{u16(w & 0xFFFFu)});
    b = to_float(fp16{u16(w >> 16)});
}
__device__ __forceinline__ u32 word(bf16, float a, float b) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(a), "f"(b));
    return w;
}
__device__ __forceinline__ u32 word(fp16, float a, float b) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(a), "f"(b));
    return w;
}

template <typename T> __device__ __forceinline__ void unpack(const Eight<T>& e, float (&v)[8]) {
    halves(T{}, e.words.x, v[0], v[1]);
    halves(T{}, e.words.y, v[2], v[3]);
    halves(T{}, e.words.z, v[4], v[5]);
    halves(T{}, e.words.w, v[6], v[7]);
}
template <> __device__ __forceinline__ void unpack<float>(const Eight<float>& e, float (&v)[8]) {
    v[0] = __uint_as_float(e.words.x);
    v[1] = __uint_as_float(e.words.y);
    v[2] = __uint_as_float(e.words.z);
    v[3] = __uint_as_float(e.words.w);
    v[4] = __uint_as_float(e.more.x);
    v[5] = __uint_as_float(e.more.y);
    v[6] = __uint_as_float(e.more.z);
    v[7] = __uint_as_float(e.more.w);
}
template <typename T> __device__ __forceinline__ Eight<T> pack(const float (&v)[8]) {
    return Eight<T>{make_uint4(word(T{}, v[0], v[1]), word(T{}, v[2], v[3]), word(T{}, v[4], v[5]),
                               word(T{}, v[6], v[7]))};
}
template <> __device__ __forceinline__ Eight<float> pack<float>(const float (&v)[8]) {
    return Eight<float>{make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                                   __float_as_uint(v[3])),
                        make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]),
                                   __float_as_uint(v[7]))};
}
// Eight values of a float vector.
__device__ __forceinline__ void values8(u64 at, u32 first, float (&v)[8]) {
    unpack(load8(reinterpret_cast<const float*>(at) + first), v);
}

// How a grid covers a tensor; mirrors tiling.rs. A thread keeps its eight channels and walks down the pixels.
struct Tiling {
    u32 tile;   // eights of channels across a block
    u32 rows;   // pixels that a block handles at once: it has tile * rows threads
    u32 chunk;  // pixels of a block in all
    u32 unused;
};

// A thread's part of it.
struct Part {
    u32 eight;   // which eight channels
    u32 row;     // which of the block's rows
    bool inside; // false where the last block across has more threads than there are channels left
    u32 first, end;
    __device__ __forceinline__ Part(const Tiling& t, u32 pixels, u32 channels) {
        eight = blockIdx.y * t.tile + threadIdx.x % t.tile;
        row = threadIdx.x / t.tile;
        inside = eight * 8 < channels;
        first = blockIdx.x * t.chunk;
        end = first + t.chunk < pixels ? first + t.chunk : pixels;
    }
    // First of its eight channels.
    __device__ __forceinline__ u32 channel() const { return eight * 8; }
};
__device__ __forceinline__ u32 pixels_of(const View& v) { return v.n * v.h * v.w; }
// Where eight channels of a pixel lie.
template <typename T> __device__ __forceinline__ T* at(const View& v, u32 pixel, u32 channel) {
    return data<T>(v) + u64(pixel) * v.pitch + channel;
}

// A pixel's picture, row and column.
struct Pixel {
    u32 n, y, x;
    __device__ __forceinline__ Pixel(u32 pixel, u32 h, u32 w) {
        u32 line = pixel / w;
        x = pixel - line * w;
        n = line / h;
        y = line - n * h;
    }
};
// Calls f(pixel, where it is, first of the thread's eight channels) for a thread's part of n pictures of h * w pixels.
template <typename F>
__device__ __forceinline__ void each_pixel(const Tiling& t, u32 n, u32 h, u32 w, u32 channels, F f) {
    Part part(t, n * h * w, channels);
    if (!part.inside) return;
    for (u32 p = part.first + part.row; p < part.end; p += t.rows) f(p, Pixel(p, h, w), part.channel());
}

// Rows and columns of a picture, in row-major order.
struct Rectangle {
    u32 top, bottom, left, right;
};
// Calls f(eight channels, pixel, row, column) for each pixel of it; UNROLL columns are loaded together.
template <typename T, int UNROLL, typename F>
__device__ __forceinline__ void each_value(const View& x, u32 n, const Rectangle& in, u32 channel, F f) {
    for (u32 r = in.top; r < in.bottom; r++) {
        u32 line = (n * x.h + r) * x.w;
#pragma unroll UNROLL
        for (u32 q = in.left; q < in.right; q++) {
            float v[8];
            unpack(load8(at<T>(x, line + q, channel)), v);
            f(v, line + q, r, q);
        }
    }
}

// Activations in two families. Without SiLU: v above zero, slope * v below; identity has slope 1, ReLU slope 0.
// A factor of zero gives zero even where v is infinite.
// The approximations that flush subnormals take one instruction each, the others four; 1 + e^-v has none.
__device__ __forceinline__ float fast_exp2(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ float fast_inverse(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ float fast_sigmoid(float v) {
    return fast_inverse(1.0f + fast_exp2(v * -1.4426950408889634f));
}
static constexpr float LARGEST = 3.402823466e38f;
template <bool SMOOTH> __device__ __forceinline__ float activate(float v, float slope) {
    if (SMOOTH) return fmaxf(v, -LARGEST) * fast_sigmoid(v);
    return v < 0.0f ? (slope == 0.0f ? 0.0f : slope * v) : v;
}
template <bool SMOOTH> __device__ __forceinline__ float activate_grad(float v, float slope, float dy) {
    if (SMOOTH) {
        float s = fast_sigmoid(v);
        float z = fminf(fmaxf(v, -LARGEST), LARGEST);
        return dy * (s * fmaf(z, 1.0f - s, 1.0f));
    }
    return v > 0.0f ? dy : (slope == 0.0f ? 0.0f : slope * dy);
}

// Sixteen bytes from global to shared memory that pass no register. Groups of them end with `end_group`; `wait_groups`
// returns when all but the last N of the thread's groups lie in shared memory, for this thread to read.
__device__ __forceinline__ void copy_async(uint4* to, const void* from) {
    u32 shared = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}
// The same of what nobody reads again soon, which leaves the second-level cache before all else.
__device__ __forceinline__ void copy_async_last(uint4* to, const void* from) {
    u32 shared = u32(__cvta_generic_to_shared(to));
    asm volatile(
        "{\n"
        ".reg .b64 first;\n"
        "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
        "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, first;\n"
        "}" ::"r"(shared), "l"(from) : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 N> __device__ __forceinline__ void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Pixels that a thread loads before it uses the first: `halves` of a half type, fewer of float.
template <typename T> constexpr u32 in_flight(u32 halves) {
    return sizeof(T) == 4 && halves > 1 ? halves / 2 : halves;
}

// A kernel for each storage type, named with its suffix.
#define EACH_TYPE(DEFINE) DEFINE(float, f32) DEFINE(bf16, bf16) DEFINE(fp16, f16)
