// Confidence filter and greedy non-maximum suppression of each image's predictions, as detect::nms defines them.
//
// nms_select lists the candidates of all images; nms_suppress, one block an image, sorts them by score (ties by row,
// then class: the sort key holds both, so that the order of the list does not matter) and keeps what no better box
// suppresses. Of more than 30000 candidates the best 30000 enter: their last key is found digit by digit.
//
// Reads the predictions once: 64 images of 8400 rows of 84 values are 181 MB, 43 us at 4.2 TB/s, the rate of a copy;
// what follows depends on the candidates. Measured on an H200, 2026-11-30, a few thousand candidates an image: 572 us
// at the thresholds of validation, 358 us at those of detection.

struct NmsArgs {
    u64 predictions; // (images, rows, pitch): centre x, centre y, width, height, scores
    u64 wanted;      // a byte a class, 0 for unwanted; address 0: all are wanted
    u64 counts;      // images x u32
    u64 keys;        // images x capacity x u64
    u64 kept;        // images x max_det x 4 floats: corners moved apart by class
    u64 detections;  // images x most x detections_pitch floats: corners, score, class
    u64 found;       // images floats: detections
    u32 images, rows, pitch, classes;
    u32 capacity; // a power of two, at least the candidates that can enter
    u32 max_det;  // at most most
    u32 most, detections_pitch;
    u32 multi_label, agnostic;
    float confidence;
    float iou; // the largest float that does not suppress
};

struct Detection {
    float corners[4];
    float score;
    u32 label;
};

static constexpr u32 COLUMNS = 6; // of a detection
static constexpr u32 LIMIT = 30000;
static constexpr u32 NONE = 0xFFFFFFFFu;
static constexpr u32 THREADS = 1024; // of nms_suppress
static constexpr u32 SORTED = 4096;  // keys that are sorted in shared memory

extern "C" __global__ void __launch_bounds__(256) nms_clear(NmsArgs a) {
    u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i < a.images) reinterpret_cast<u32*>(a.counts)[i] = 0;
}

__device__ __forceinline__ const float* prediction(const NmsArgs& a, u32 image, u32 row) {
    return reinterpret_cast<const float*>(a.predictions) + (u64(image) * a.rows + row) * a.pitch;
}
__device__ __forceinline__ bool is_wanted(const NmsArgs& a, u32 label) {
    return a.wanted == 0 || reinterpret_cast<const u8*>(a.wanted)[label] != 0;
}
// Ascending keys: falling scores, then rising rows and classes.
__device__ __forceinline__ u64 key_of(const NmsArgs& a, float score, u32 row, u32 label) {
    u32 bits = __float_as_uint(score);
    u32 rising = bits >> 31 ? ~bits : bits | 0x80000000u;
    return u64(~rising) << 32 | (row * a.classes + label);
}

// Calls f(is a candidate, key) for the candidates of rows first, first + step and so on of an image. A warp works on
// one row and calls f with all its lanes.
template <typename F>
__device__ __forceinline__ void candidates(const NmsArgs& a, u32 image, u32 first, u32 step, F f) {
    u32 lane = threadIdx.x % 32;
    for (u32 row = first; row < a.rows; row += step) {
        const float* scores = prediction(a, image, row) + 4;
        if (a.multi_label) {
            for (u32 start = 0; start < a.classes; start += 32) {
                u32 label = start + lane;
                float score = label < a.classes ? scores[label] : 0.0f;
                bool is = label < a.classes && score > a.confidence && is_wanted(a, label);
                f(is, key_of(a, score, row, label));
            }
        } else {
            float best = a.confidence;
            u32 label = NONE;
            for (u32 k = lane; k < a.classes; k += 32) {
                float score = scores[k];
                if (score > best) {
                    best = score;
                    label = k;
                }
            }
            for (u32 s = 16; s > 0; s >>= 1) {
                float other = __shfl_xor_sync(0xFFFFFFFFu, best, s);
                u32 other_label = __shfl_xor_sync(0xFFFFFFFFu, label, s);
                bool better = other_label != NONE &&
                              (label == NONE || other > best || (other == best && other_label < label));
                best = better ? other : best;
                label = better ? other_label : label;
            }
            bool is = lane == 0 && label != NONE && is_wanted(a, label);
            f(is, is ? key_of(a, best, row, label) : 0);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) nms_select(NmsArgs a) {
    u32 image = blockIdx.y, lane = threadIdx.x % 32;
    u32* count = reinterpret_cast<u32*>(a.counts) + image;
    u64* keys = reinterpret_cast<u64*>(a.keys) + u64(image) * a.capacity;
    u32 most = a.capacity < LIMIT ? a.capacity : LIMIT;
    candidates(a, image, blockIdx.x * 8 + threadIdx.x / 32, gridDim.x * 8, [&](bool is, u64 key) {
        u32 votes = __ballot_sync(0xFFFFFFFFu, is);
        if (votes == 0) return;
        u32 base = 0;
        if (lane == 0) base = atomicAdd(count, u32(__popc(votes)));
        base = __shfl_sync(0xFFFFFFFFu, base, 0);
        u32 at = base + __popc(votes & ((1u << lane) - 1));
        if (is && at < most) keys[at] = key;
    });
}

// The `rank`-th smallest key of an image's candidates (from 1), eight bits at a time. All threads call it.
__device__ __forceinline__ u64 key_of_rank(const NmsArgs& a, u32 image, u32 rank) {
    __shared__ u32 histogram[256];
    __shared__ u64 shared_prefix;
    __shared__ u32 shared_rank;
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        candidates(a, image, threadIdx.x / 32, THREADS / 32, [&](bool is, u64 key) {
            // Above the digit the key must be the prefix; at the first digit there is nothing above.
            if (is && (shift == 56 || key >> (shift + 8) == prefix)) atomicAdd(&histogram[key >> shift & 255], 1u);
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 digit = 0, before = 0;
            while (digit < 255 && before + histogram[digit] < rank) before += histogram[digit++];
            shared_prefix = prefix << 8 | digit;
            shared_rank = rank - before;
        }
        __syncthreads();
        prefix = shared_prefix;
        rank = shared_rank;
        __syncthreads();
    }
    return prefix;
}

// One step of a bitonic sort over `size` keys: pairs `j` apart in runs of `k`. `base` is the place of keys[0] in the
// whole.
__device__ __forceinline__ void exchange(u64* keys, u32 size, u32 base, u32 k, u32 j) {
    for (u32 q = threadIdx.x; q < size / 2; q += THREADS) {
        u32 low = ((q & ~(j - 1)) << 1) | (q & (j - 1)), high = low | j;
        u64 x = keys[low], y = keys[high];
        bool rising = ((base + low) & k) == 0;
        if ((x > y) == rising) {
            keys[low] = y;
            keys[high] = x;
        }
    }
    __syncthreads();
}

// Sorts `size` keys, a power of two, in rising order. All threads call it.
__device__ __forceinline__ void sort(u64* keys, u32 size) {
    __shared__ u64 tile[SORTED];
    u32 part = size < SORTED ? size : SORTED;
    for (u32 k = part; k <= size; k <<= 1) {
        // Steps over more than a tile go through memory, the others through shared memory; the first time round
        // these are all steps of all runs up to a tile.
        for (u32 j = k / 2; j >= part; j >>= 1) exchange(keys, size, 0, k, j);
        for (u32 base = 0; base < size; base += part) {
            for (u32 i = threadIdx.x; i < part; i += THREADS) tile[i] = keys[base + i];
            __syncthreads();
            for (u32 run = k == part ? 2 : k; run <= k; run <<= 1)
                for (u32 j = (run < part ? run : part) / 2; j > 0; j >>= 1) exchange(tile, part, base, run, j);
            for (u32 i = threadIdx.x; i < part; i += THREADS) keys[base + i] = tile[i];
            __syncthreads();
        }
    }
}

// Corners moved away from other classes, and their area: every rounding is the CPU's.
struct Shifted {
    float x0, y0, x1, y1, area;
    __device__ __forceinline__ Shifted() {}
    __device__ __forceinline__ Shifted(float a, float b, float c, float d) : x0(a), y0(b), x1(c), y1(d) {
        area = __fmul_rn(__fadd_rn(x1, -x0), __fadd_rn(y1, -y0));
    }
    __device__ __forceinline__ float iou(const Shifted& o) const {
        float w = fmaxf(__fadd_rn(fminf(x1, o.x1), -fmaxf(x0, o.x0)), 0.0f);
        float h = fmaxf(__fadd_rn(fminf(y1, o.y1), -fmaxf(y0, o.y0)), 0.0f);
        float inter = __fmul_rn(w, h);
        return inter / __fadd_rn(__fadd_rn(area, o.area), -inter);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) nms_suppress(NmsArgs a) {
    u32 image = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64* keys = reinterpret_cast<u64*>(a.keys) + u64(image) * a.capacity;
    float4* kept = reinterpret_cast<float4*>(a.kept) + u64(image) * a.max_det;
    float* detections = reinterpret_cast<float*>(a.detections) + u64(image) * a.most * a.detections_pitch;
    __shared__ u32 listed;
    __shared__ u32 firsts[THREADS / 32];
    __shared__ float4 winner;

    u32 count = reinterpret_cast<const u32*>(a.counts)[image];
    if (count > LIMIT) {
        u64 last = key_of_rank(a, image, LIMIT);
        if (threadIdx.x == 0) listed = 0;
        __syncthreads();
        candidates(a, image, warp, THREADS / 32, [&](bool is, u64 key) {
            if (is && key <= last) keys[atomicAdd(&listed, 1u)] = key;
        });
        __syncthreads();
        count = LIMIT;
    }
    if (count > 1) {
        u32 size = 1u << (32 - __clz(count - 1));
        for (u32 i = count + threadIdx.x; i < size; i += THREADS) keys[i] = ~0ull;
        __syncthreads();
        sort(keys, size);
    }

    u32 total = 0; // kept so far
    for (u32 base = 0; base < count && total < a.max_det; base += THREADS) {
        bool alive = base + threadIdx.x < count;
        Detection mine;
        Shifted box(0.0f, 0.0f, 0.0f, 0.0f);
        if (alive) {
            u32 index = u32(keys[base + threadIdx.x]);
            u32 row = index / a.classes;
            mine.label = index - row * a.classes;
            const float* p = prediction(a, image, row);
            mine.score = p[4 + mine.label];
            float half_w = p[2] / 2.0f, half_h = p[3] / 2.0f;
            mine.corners[0] = __fadd_rn(p[0], -half_w);
            mine.corners[1] = __fadd_rn(p[1], -half_h);
            mine.corners[2] = __fadd_rn(p[0], half_w);
            mine.corners[3] = __fadd_rn(p[1], half_h);
            float shift = a.agnostic ? 0.0f : __fmul_rn(float(mine.label), 7680.0f);
            box = Shifted(__fadd_rn(mine.corners[0], shift), __fadd_rn(mine.corners[1], shift),
                          __fadd_rn(mine.corners[2], shift), __fadd_rn(mine.corners[3], shift));
            for (u32 i = 0; i < total && alive; i++) {
                float4 k = kept[i];
                if (Shifted(k.x, k.y, k.z, k.w).iou(box) > a.iou) alive = false;
            }
        }
        // Of these candidates the first that is left is kept and suppresses others, until none is left.
        while (total < a.max_det) {
            u32 votes = __ballot_sync(0xFFFFFFFFu, alive);
            if (lane == 0) firsts[warp] = votes == 0 ? NONE : warp * 32 + u32(__ffs(votes)) - 1;
            __syncthreads();
            u32 first = firsts[lane];
            for (u32 s = 16; s > 0; s >>= 1) {
                u32 other = __shfl_xor_sync(0xFFFFFFFFu, first, s);
                first = other < first ? other : first;
            }
            if (first == NONE) break;
            if (threadIdx.x == first) {
                winner = make_float4(box.x0, box.y0, box.x1, box.y1);
                kept[total] = winner;
                float* row = detections + u64(total) * a.detections_pitch;
#pragma unroll
                for (u32 i = 0; i < 4; i++) row[i] = mine.corners[i];
                row[4] = mine.score;
                row[5] = float(mine.label); // exact below 2^24
                alive = false;
            }
            __syncthreads();
            if (alive && Shifted(winner.x, winner.y, winner.z, winner.w).iou(box) > a.iou) alive = false;
            total++;
        }
        // `firsts` is read above and written by the next round; kept boxes are read by the next candidates.
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < (a.most - total) * COLUMNS; i += THREADS)
        detections[u64(total + i / COLUMNS) * a.detections_pitch + i % COLUMNS] = 0.0f;
    if (threadIdx.x == 0) reinterpret_cast<float*>(a.found)[image] = float(total);
}
