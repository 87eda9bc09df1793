// How a grid sweeps over the pixels of a tensor, and what its threads have in flight meanwhile. Comes after tiles.cuh.
//
// The blocks that run at once read pixels that lie side by side, and go through memory together in one direction: what
// was read last is what the second-level cache still has when the sweep ends. So the next sweep over the same tensors
// begins there and goes the other way: convolutions write from the first pixel to the last, statistics begin at the
// last, outputs at the first; sums of gradients begin at the first, gradients at the last.

// Threads of a block that maps values.
static constexpr u32 SWEEPING = 256;

// Mirrors sweep.rs.
struct Sweep {
    u32 tile;   // eights of channels of a group; a block has one group
    u32 rows;   // pixels that a block handles at once; threads beyond tile * rows have none
    u32 chunks; // blocks of a group that sweep together
    u32 groups;
    u32 turns; // of the loop of a block, at most; where there are more pixels, other blocks go on
    u32 unused;
};

// A thread's share, of pixels in the order of the sweep.
struct Share {
    u32 group, chunk, row;
    u32 eight;   // which eight channels
    bool inside; // false for threads without channels
    u32 first, step, end;
    __device__ __forceinline__ Share(const Sweep& s, u32 pixels, u32 channels) {
        // Groups of the same pixels are neighbours in time.
        u32 line = blockIdx.x / s.groups, round = line / s.chunks;
        group = blockIdx.x - line * s.groups;
        chunk = line - round * s.chunks;
        row = threadIdx.x / s.tile;
        eight = group * s.tile + threadIdx.x - row * s.tile;
        inside = row < s.rows && eight * 8 < channels;
        step = s.chunks * s.rows;
        u32 begin = round * s.turns * step;
        first = begin + chunk * s.rows + row;
        end = min(begin + s.turns * step, pixels);
    }
    // First of its eight channels.
    __device__ __forceinline__ u32 channel() const { return eight * 8; }
};

// Pixels that a thread has in flight in dynamic shared memory, each of `OPERANDS` tensors: 32 KiB for 256 threads,
// or 48 of three. A thread reads only what it copied itself, so that no barrier is needed.
template <typename T, u32 OPERANDS, u32 THREADS> struct Ring {
    static constexpr u32 WORDS = sizeof(Eight<T>) / 16;
    static constexpr u32 DEPTH = (OPERANDS == 1 ? 8 : 4) / WORDS;
    uint4* mine;
    __device__ __forceinline__ explicit Ring(uint4* room) : mine(room + threadIdx.x) {}
    __device__ __forceinline__ uint4* slot(u32 place, u32 operand) const {
        return mine + (place * OPERANDS + operand) * WORDS * THREADS;
    }
    // LAST: nobody reads it again soon.
    template <bool LAST = false>
    __device__ __forceinline__ void request(u32 place, u32 operand, const T* from) const {
        uint4* to = slot(place, operand);
        const uint4* words = reinterpret_cast<const uint4*>(from);
#pragma unroll
        for (u32 w = 0; w < WORDS; w++) {
            if (LAST) copy_async_last(to + w * THREADS, words + w);
            else copy_async(to + w * THREADS, words + w);
        }
    }
    __device__ __forceinline__ void read(u32 place, u32 operand, float (&v)[8]) const {
        Eight<T> e;
        uint4* words = reinterpret_cast<uint4*>(&e);
#pragma unroll
        for (u32 w = 0; w < WORDS; w++) words[w] = slot(place, operand)[w * THREADS];
        unpack(e, v);
    }
};
