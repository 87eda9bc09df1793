// Evaluation decoding: softmax expectation of 16 bins for each side, the box around the cell's centre in network
// pixels, and the sigmoid of the class logits, from the head's float32 maps to rows (centre x, centre y, width,
// height, scores). Anchors run level by level, row by row.
//
// Reads 64 + nc values an anchor, writes 4 + nc: 64 pictures of 8400 anchors and 80 classes are 490 MB, 102 us at
// 4.8 TB/s.

struct DecodeLevel {
    u64 boxes, classes;
    u32 boxes_pitch, classes_pitch;
    u32 w, cells;
    u32 first; // anchor
    float stride;
};

struct DecodeArgs {
    DecodeLevel levels[8];
    u64 out;
    u32 pitch, anchors, classes, count; // count: levels
};

static constexpr u32 ANCHORS = 64; // of a block

__device__ __forceinline__ u32 level_of(const DecodeArgs& a, u32 anchor) {
    u32 level = a.count - 1;
    while (a.levels[level].first > anchor) level--;
    return level;
}

// Expected bin of 16 logits.
__device__ __forceinline__ float expectation(const float* logits) {
    float v[16];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 q = reinterpret_cast<const float4*>(logits)[i];
        v[4 * i] = q.x;
        v[4 * i + 1] = q.y;
        v[4 * i + 2] = q.z;
        v[4 * i + 3] = q.w;
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

extern "C" __global__ void __launch_bounds__(256) decode(DecodeArgs a) {
    u32 image = blockIdx.y, start = blockIdx.x * ANCHORS;
    float* out = reinterpret_cast<float*>(a.out) + u64(image) * a.anchors * a.pitch;

    // Four threads an anchor, one a side: left, top, right, bottom. All lanes take part in the exchange.
    u32 anchor = start + threadIdx.x / 4, side = threadIdx.x % 4;
    bool inside = anchor < a.anchors;
    const DecodeLevel& level = a.levels[level_of(a, inside ? anchor : 0)];
    u32 cell = inside ? anchor - level.first : 0;
    float distance = 0.0f;
    if (inside) {
        const float* boxes = reinterpret_cast<const float*>(level.boxes);
        distance = expectation(boxes + (u64(image) * level.cells + cell) * level.boxes_pitch + side * 16);
    }
    float centre = float(side % 2 == 0 ? cell % level.w : cell / level.w) + 0.5f;
    float other = __shfl_xor_sync(0xFFFFFFFFu, distance, 2);
    float low = centre - (side < 2 ? distance : other), high = centre + (side < 2 ? other : distance);
    float value = side < 2 ? (low + high) / 2.0f : high - low;
    if (inside) out[u64(anchor) * a.pitch + side] = value * level.stride;

    u32 end = start + ANCHORS < a.anchors ? start + ANCHORS : a.anchors;
    // Four classes a thread. Class maps are aligned and their physical channels end at a multiple of eight.
    u32 fours = (a.classes + 3) / 4, total = (end - start) * fours;
    bool aligned = a.pitch % 4 == 0 && a.out % 16 == 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < total; i += 256) {
        u32 row = i / fours, k = (i - row * fours) * 4, at = start + row;
        const DecodeLevel& l = a.levels[level_of(a, at)];
        const float* classes = reinterpret_cast<const float*>(l.classes);
        u64 place = (u64(image) * l.cells + (at - l.first)) * l.classes_pitch + k;
        float4 logits = *reinterpret_cast<const float4*>(classes + place);
        float scores[4] = {logits.x, logits.y, logits.z, logits.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float e = expf(-fabsf(scores[c]));
            scores[c] = (scores[c] > 0.0f ? 1.0f : e) / (1.0f + e);
        }
        float* to = out + u64(at) * a.pitch + 4 + k;
        if (aligned && k + 4 <= a.classes) {
            *reinterpret_cast<float4*>(to) = make_float4(scores[0], scores[1], scores[2], scores[3]);
        } else {
#pragma unroll
            for (u32 c = 0; c < 4; c++)
                if (k + c < a.classes) to[c] = scores[c];
        }
    }
}
