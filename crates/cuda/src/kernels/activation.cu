// y = act(x), and dx (+)= dy * act'(x).
//
// Forward reads x and writes y: 64x160x160x32 in bf16 is 210 MB, 50 us at 4.2 TB/s, the rate of a copy; the gradient
// moves half as much again, 75 us. No time on a card is kept.

struct ActivateArgs {
    View x, dy, y; // dy: of the gradient only; y: result
    Tiling t;
    float slope;
    u32 accumulate;
};

template <typename T, bool SMOOTH, bool GRADIENT> __device__ __forceinline__ void run(const ActivateArgs& a) {
    constexpr u32 U = in_flight<T>(4);
    Part part(a.t, pixels_of(a.y), a.y.c);
    if (!part.inside) return;
    u32 rows = a.t.rows, c = part.channel();
    for (u32 p = part.first + part.row; p < part.end; p += U * rows) {
        Eight<T> x[U], dy[U], old[U];
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            u32 q = p + u * rows;
            if (q < part.end) {
                x[u] = load8(at<T>(a.x, q, c));
                if (GRADIENT) dy[u] = load8(at<T>(a.dy, q, c));
                if (a.accumulate) old[u] = load8(at<T>(a.y, q, c));
            }
        }
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            u32 q = p + u * rows;
            if (q >= part.end) break;
            float v[8], g[8];
            unpack(x[u], v);
            if (GRADIENT) unpack(dy[u], g);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = GRADIENT ? activate_grad<SMOOTH>(v[i], a.slope, g[i]) : activate<SMOOTH>(v[i], a.slope);
            if (a.accumulate) {
                unpack(old[u], g);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] += g[i];
            }
            store8(at<T>(a.y, q, c), pack<T>(v));
        }
    }
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) activate_silu_##S(ActivateArgs a) { run<T, true, false>(a); } \
    extern "C" __global__ void __launch_bounds__(256) activate_leaky_##S(ActivateArgs a) { run<T, false, false>(a); } \
    extern "C" __global__ void __launch_bounds__(256) activate_grad_silu_##S(ActivateArgs a) { \
        run<T, true, true>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) activate_grad_leaky_##S(ActivateArgs a) { \
        run<T, false, true>(a); \
    }
EACH_TYPE(DEFINE)
