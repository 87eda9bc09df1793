// Sums over the pixels of each channel, in one launch and one order. Comes after sweep.cuh.
//
// The channels are cut into groups of at most 64. The blocks of a group, for all groups one for each multiprocessor of
// the largest cards, sweep over the pixels. Each writes what it has; the last one to do so combines that of all, by
// their index, in float64. Who is last is found by a counter, which ends at the zero that it began with.

// Mirrors sums.rs.
struct Sums {
    Sweep sweep;
    u64 partials; // groups x chunks x results x tile * 8 floats
    u64 counters; // one a group: blocks that are done
};
// Threads of a block.
static constexpr u32 SUMMING = 512;

// Pixels of a block's share, in all at least one.
__device__ __forceinline__ u32 pixels_of_chunk(const Sweep& s, u32 pixels, u32 chunk) {
    u32 step = s.chunks * s.rows, turns = pixels / step, first = chunk * s.rows, rest = pixels - turns * step;
    return turns * s.rows + (rest > first ? min(rest - first, s.rows) : 0);
}

// A group's results lie half by half: place h * 4 * tile + 4 * e + i has channel 8 * e + 4 * h + i of the group.
__device__ __forceinline__ u32 channel_at(const Sweep& s, u32 group, u32 place) {
    u32 half = place / (4 * s.tile), rest = place - half * 4 * s.tile;
    return group * s.tile * 8 + rest / 4 * 8 + half * 4 + rest % 4;
}

// Sums over a block's rows. All threads call it, when none needs what is in the room any more; thread `place` of the
// first 8 * tile gets the sums of its place.
template <int COUNT>
__device__ __forceinline__ void block_sums(const Sweep& s, const float (&mine)[COUNT][8], float (&sums)[COUNT],
                                           uint4* room) {
    // The gap between planes keeps threads of a warp that read two of them out of each other's banks.
    constexpr u32 PLANE = SUMMING + 4;
    u32 me = threadIdx.x;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        Eight<float> e = pack<float>(mine[k]);
        room[2 * k * PLANE + me] = e.words;
        room[(2 * k + 1) * PLANE + me] = e.more;
    }
    __syncthreads();
    // Each lane sums every `lanes`-th row of a place.
    u32 width = 4 * s.tile, places = 2 * COUNT * width, lanes = SUMMING / places, lane = me / places;
    float* parts = reinterpret_cast<float*>(room + 2 * COUNT * PLANE);
    if (lane < lanes) {
        u32 place = me - lane * places, plane = place / width;
        const float* from = reinterpret_cast<const float*>(room + plane * PLANE) + (place - plane * width);
        float sum = 0.0f;
#pragma unroll 8
        for (u32 row = lane; row < s.rows; row += lanes) sum += from[row * width];
        parts[me] = sum;
    }
    __syncthreads();
    if (me >= 2 * width) return;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        sums[k] = 0.0f;
        for (u32 l = 0; l < lanes; l++) sums[k] += parts[l * places + k * 2 * width + me];
    }
}

// Writes a block's results, those of a place by its thread.
template <int COUNT>
__device__ __forceinline__ void write_results(const Sums& s, const Share& share, const float (&results)[COUNT]) {
    u32 width = 8 * s.sweep.tile;
    if (threadIdx.x >= width) return;
    u64 block = u64(share.group) * s.sweep.chunks + share.chunk;
    float* to = reinterpret_cast<float*>(s.partials) + block * COUNT * width;
#pragma unroll
    for (int k = 0; k < COUNT; k++) to[k * width + threadIdx.x] = results[k];
}

// True in the last of a group's blocks, which sees what all of them have written. All threads call it.
__device__ __forceinline__ bool last_of_group(const Sums& s, u32 group) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* counter = reinterpret_cast<u32*>(s.counters) + group;
        __threadfence();
        last = atomicAdd(counter, 1u) + 1 == s.sweep.chunks;
        if (last) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// Results of a group's block that lie from `from` on, past the first-level cache: four places.
__device__ __forceinline__ void read_results(const float4* from, float (&v)[4]) {
    float4 q = __ldcg(from);
    v[0] = q.x;
    v[1] = q.y;
    v[2] = q.z;
    v[3] = q.w;
}
__device__ __forceinline__ const float4* results_of(const Sums& s, u32 group, u32 chunk, u32 count) {
    u64 block = u64(group) * s.sweep.chunks + chunk;
    return reinterpret_cast<const float4*>(s.partials) + block * count * 2 * s.sweep.tile;
}

// Adds up what `take(chunk, results, sums)` adds to the sums of four places, over a group's blocks. All threads call
// it; threads 4 * place get the sums of a place, in the order of the blocks and their lanes.
template <int COUNT, typename Take>
__device__ __forceinline__ void group_sums(const Sums& s, u32 group, double (&sums)[COUNT], uint4* room, Take take) {
    constexpr u32 LOADS = 5, MOST_LANES = 32;
    u32 me = threadIdx.x, quads = 2 * s.sweep.tile, lanes = min(SUMMING / quads, MOST_LANES), lane = me / quads;
    u32 quad = me - lane * quads, places = 4 * quads, pitch = COUNT * places + 4;
    double* parts = reinterpret_cast<double*>(room);
    if (lane < lanes) {
        double four[COUNT][4];
#pragma unroll
        for (int k = 0; k < COUNT; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) four[k][i] = 0.0;
        for (u32 chunk = lane; chunk < s.sweep.chunks; chunk += LOADS * lanes) {
            float v[LOADS][COUNT][4];
#pragma unroll
            for (u32 l = 0; l < LOADS; l++) {
                u32 c = chunk + l * lanes;
                if (c >= s.sweep.chunks) continue;
#pragma unroll
                for (int k = 0; k < COUNT; k++)
                    read_results(results_of(s, group, c, COUNT) + k * quads + quad, v[l][k]);
            }
#pragma unroll
            for (u32 l = 0; l < LOADS; l++)
                if (chunk + l * lanes < s.sweep.chunks) take(chunk + l * lanes, v[l], four);
        }
#pragma unroll
        for (int k = 0; k < COUNT; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) parts[lane * pitch + k * places + quad * 4 + i] = four[k][i];
    }
    __syncthreads();
    // Four threads a place.
    u32 place = me / 4;
    if (place >= places) return;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        double sum = 0.0;
#pragma unroll
        for (u32 j = 0; j < MOST_LANES / 4; j++) {
            u32 l = me % 4 + 4 * j;
            if (l < lanes) sum += parts[l * pitch + k * places + place];
        }
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        sums[k] = sum;
    }
}
