// Evaluation decoding: softmax expectation of 16 bins for each side, the box around the cell's centre in network
// pixels, and the sigmoid of the class logits, from the head's float32 maps to rows (centre x, centre y, width,
// height, scores). Anchors run level by level, row by row. What a row has beyond its scores is zeroed: memory takes
// whole sectors of 32 bytes at once, and would read the rest of one that is written in part.
//
// A block has 64 anchors of one level of one picture. It requests their box logits into shared memory, makes the scores
// in registers, and then the boxes.
//
// Reads 64 + nc values an anchor, writes 4 + nc and the rest of the row: 64 pictures of 8400 anchors and 80 classes are
// 490 MB, 117 us at 4.2 TB/s, the rate of a copy. On an H200, 2026-12-01: 129 us.

struct DecodeLevel {
    u64 boxes, classes;
    u32 boxes_pitch, classes_pitch;
    u32 w, cells;
    u32 first; // anchor
    u32 block; // first of the level's blocks
    float stride;
    u32 unused;
};

struct DecodeArgs {
    DecodeLevel levels[8];
    u64 out;
    u32 pitch, anchors, classes, count; // count: levels
};

static constexpr u32 ANCHORS = 64, THREADS = 256;
// Class logits of a thread that are under way together, in fours: all of its part of 80 classes.
static constexpr u32 LOADS = 6;
// A side has 64 bytes of logits; the gap after each keeps threads of a warp out of each other's banks.
static constexpr u32 SIDE = 5, ROW = 4 * SIDE;

// Expected bin of 16 logits.
__device__ __forceinline__ float expectation(const uint4* logits) {
    float v[16];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 q = logits[i];
        v[4 * i] = __uint_as_float(q.x);
        v[4 * i + 1] = __uint_as_float(q.y);
        v[4 * i + 2] = __uint_as_float(q.z);
        v[4 * i + 3] = __uint_as_float(q.w);
    }
    float most = v[0];
#pragma unroll
    for (int i = 1; i < 16; i++) most = v[i] > most ? v[i] : most;
    float sum = 0.0f, weighted = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float e = expf(v[i] - most);
        sum += e;
        weighted = fmaf(float(i), e, weighted);
    }
    return weighted / sum;
}

// Without overflow, and exact where the score is small.
__device__ __forceinline__ float score(float logit) {
    float e = expf(-fabsf(logit));
    return (logit > 0.0f ? 1.0f : e) * fast_inverse(1.0f + e);
}

extern "C" __global__ void __launch_bounds__(THREADS) decode(DecodeArgs a) {
    __shared__ uint4 bins[ANCHORS * ROW];
    u32 image = blockIdx.y, l = a.count - 1, thread = threadIdx.x;
    while (a.levels[l].block > blockIdx.x) l--;
    const DecodeLevel& level = a.levels[l];
    u32 start = (blockIdx.x - level.block) * ANCHORS, count = min(level.cells - start, ANCHORS);
    u64 cell = u64(image) * level.cells + start;
    float* out = reinterpret_cast<float*>(a.out) + (u64(image) * a.anchors + level.first + start) * a.pitch;

    // Sixteen threads an anchor.
    const float* boxes = reinterpret_cast<const float*>(level.boxes) + cell * level.boxes_pitch;
    u32 part = thread % 16;
    for (u32 row = thread / 16; row < count; row += THREADS / 16)
        copy_async(bins + row * ROW + part / 4 * SIDE + part % 4, boxes + u64(row) * level.boxes_pitch + part * 4);
    end_group();

    // Four classes a thread, or what is beyond them. Class maps are aligned and their physical channels end at a
    // multiple of eight.
    u32 columns = a.pitch - 4, across = min(max((columns + 3) / 4, 1u), THREADS);
    u32 rows = THREADS / across, first = thread / across;
    bool aligned = a.pitch % 4 == 0 && a.out % 16 == 0;
    const float* classes = reinterpret_cast<const float*>(level.classes) + cell * level.classes_pitch;
    for (u32 k = (thread - first * across) * 4; k < columns && first < rows; k += across * 4) {
        for (u32 row = first; row < count; row += LOADS * rows) {
            float4 logits[LOADS] = {};
#pragma unroll
            for (u32 u = 0; u < LOADS; u++) {
                u32 r = row + u * rows;
                if (r < count && k < a.classes)
                    logits[u] = *reinterpret_cast<const float4*>(classes + u64(r) * level.classes_pitch + k);
            }
#pragma unroll
            for (u32 u = 0; u < LOADS; u++) {
                u32 r = row + u * rows;
                if (r >= count) break;
                float scores[4] = {score(logits[u].x), score(logits[u].y), score(logits[u].z), score(logits[u].w)};
#pragma unroll
                for (u32 c = 0; c < 4; c++) scores[c] = k + c < a.classes ? scores[c] : 0.0f;
                float* to = out + u64(r) * a.pitch + 4 + k;
                if (aligned) {
                    *reinterpret_cast<float4*>(to) = make_float4(scores[0], scores[1], scores[2], scores[3]);
                } else {
#pragma unroll
                    for (u32 c = 0; c < 4; c++)
                        if (k + c < columns) to[c] = scores[c];
                }
            }
        }
    }

    wait_groups<0>();
    __syncthreads();
    // Four threads an anchor, one a side: left, top, right, bottom. All lanes take part in the exchange.
    u32 anchor = thread / 4, side = thread % 4, at = start + anchor;
    bool inside = anchor < count;
    float distance = inside ? expectation(bins + anchor * ROW + side * SIDE) : 0.0f;
    float centre = float(side % 2 == 0 ? at % level.w : at / level.w) + 0.5f;
    float other = __shfl_xor_sync(0xFFFFFFFFu, distance, 2);
    float low = centre - (side < 2 ? distance : other), high = centre + (side < 2 ? other : distance);
    float value = side < 2 ? (low + high) / 2.0f : high - low;
    if (inside) out[u64(anchor) * a.pitch + side] = value * level.stride;
}
