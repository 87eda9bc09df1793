// Mean and biased variance of each channel over all pixels, of the values as stored.
//
// A block sums d and d^2 in float32, with d the distance from its first pixel; from these follow its mean and M2, the
// sum of squared deviations from the mean. The last block merges the blocks' results by Chan's formula in float64.
// E[x^2] - E[x]^2 about zero, which cancels where the mean is large, is never formed.
//
// It begins with the last pixels, which the convolution has just written and the second-level cache may have.
//
// Reads x once: 64x160x160x32 in bf16 are 105 MB, 25 us at 4.2 TB/s, the rate of a copy. On an H200, 2026-12-01: 35 us.

struct BnStatsArgs {
    View x;
    Sums sums; // results: means and M2
    u64 mean, var;
};

// Sums over a thread's pixels, from the tensor's last to its first, through a ring in shared memory.
template <typename T>
__device__ __forceinline__ void shifted_sums(const BnStatsArgs& a, const Share& share, u32 last,
                                             const float (&shift)[8], float (&sums)[2][8], uint4* room) {
    using Place = Ring<T, 1, SUMMING>;
    constexpr u32 U = Place::DEPTH;
    Place ring(room);
    u32 next = share.first;
    auto request = [&](u32 place) {
        if (next < share.end) ring.request(place, 0, at<T>(a.x, last - next, share.channel()));
        end_group();
        next += share.step;
    };
#pragma unroll
    for (u32 u = 0; u < U; u++) request(u);
    u32 place = 0;
#pragma unroll 2
    for (u32 p = share.first; p < share.end; p += share.step) {
        wait_groups<U - 1>();
        float v[8];
        ring.read(place, 0, v);
        request(place);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float d = v[i] - shift[i];
            sums[0][i] += d;
            sums[1][i] = fmaf(d, d, sums[1][i]);
        }
        place = (place + 1) % U;
    }
}

template <typename T> __device__ __forceinline__ void bn_stats(const BnStatsArgs& a) {
    extern __shared__ uint4 room[];
    __shared__ float shifts[64];
    const Sweep& s = a.sums.sweep;
    u32 pixels = pixels_of(a.x), me = threadIdx.x;
    Share share(s, pixels, a.x.c);
    float mine[2][8], shift[8];
#pragma unroll
    for (int i = 0; i < 8; i++) mine[0][i] = mine[1][i] = shift[i] = 0.0f;
    if (share.inside) {
        u32 last = pixels - 1;
        unpack(load8(at<T>(a.x, last - share.chunk * s.rows, share.channel())), shift);
        shifted_sums<T>(a, share, last, shift, mine, room);
    }
    if (share.row == 0) {
        // Like results: half by half.
#pragma unroll
        for (int i = 0; i < 8; i++) shifts[i / 4 * 4 * s.tile + me * 4 + i % 4] = shift[i];
    }
    float sums[2], results[2];
    block_sums(s, mine, sums, room);
    if (me < 8 * s.tile) {
        float d = sums[0] / float(pixels_of_chunk(s, pixels, share.chunk));
        results[0] = shifts[me] + d;
        float m2 = fmaf(-d, sums[0], sums[1]);
        results[1] = m2 < 0.0f ? 0.0f : m2;
    }
    write_results(a.sums, share, results);
    if (!last_of_group(a.sums, share.group)) return;

    // Distances of the means from that of the first block.
    const float4* first = results_of(a.sums, share.group, 0, 2);
    float base[4];
    read_results(first + me % (2 * s.tile), base);
    double total[2];
    group_sums(a.sums, share.group, total, room, [&](u32 chunk, const float(&v)[2][4], double(&to)[2][4]) {
        double n = pixels_of_chunk(s, pixels, chunk);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            double d = double(v[0][i]) - double(base[i]);
            to[0][i] += n * d;
            to[1][i] += double(v[1][i]) + n * d * d;
        }
    });
    u32 channel = channel_at(s, share.group, me / 4);
    if (me % 4 == 0 && me / 4 < 8 * s.tile && channel < a.x.c) {
        float shifted = __ldcg(reinterpret_cast<const float*>(first) + me / 4);
        double d = total[0] / double(pixels), var = total[1] / double(pixels) - d * d;
        reinterpret_cast<float*>(a.mean)[channel] = float(double(shifted) + d);
        reinterpret_cast<float*>(a.var)[channel] = float(var < 0.0 ? 0.0 : var);
    }
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(SUMMING) bn_stats_##S(BnStatsArgs a) { bn_stats<T>(a); }
EACH_TYPE(DEFINE)
