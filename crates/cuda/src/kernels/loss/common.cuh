// What all kernels of the detection loss share: their argument, which mod.rs mirrors, and the numbering of anchors.
//
// An anchor of the batch has a slot: level by level, within a level image by image, within an image row by row. The
// rows of a head map are thus consecutive slots, and the slots of one image ascend as its anchors do.

constexpr u32 MAX_LEVELS = 8;
constexpr u32 MAX_BRANCHES = 4;
constexpr u32 LOSS_VALUES = 4 + 5 * MAX_BRANCHES;
constexpr u32 BINS = 16;
constexpr u32 BOX_CHANNELS = 4 * BINS;
constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / 32;
constexpr u32 ALL = 0xFFFFFFFFu;

// Owner of an anchor: the number of a box, or one of these. Only the last two ever learn a box.
constexpr u32 BACKGROUND = 0xFFFFFFFFu;
// Background whose box is not finite, which must show in the loss.
constexpr u32 BROKEN = 0xFFFFFFFEu;
// Claimed by several boxes.
constexpr u32 CONTESTED = 0xFFFFFFFDu;

struct Level {
    u32 h, w, stride;
    // Anchors of one image in the levels before.
    u32 first;
    // Groups of 32 slots in the levels before.
    u32 tiles;
    u32 unused;
};

// Logits and gradients of one level of one branch; pitches and channels in elements.
struct Maps {
    u64 boxes, classes, box_gradient, class_gradient;
    u32 box_pitch, class_pitch, box_gradient_pitch, class_gradient_pitch;
    u32 box_gradient_channels, class_gradient_channels;
};

struct Args {
    Maps maps[MAX_BRANCHES][MAX_LEVELS];
    Level level[MAX_LEVELS];
    double branch_weight[MAX_BRANCHES];
    double box_gain, cls_gain, dfl_gain;
    // Targets: batch + 1 offsets, classes, (x, y, w, h) as fractions of the input.
    u64 offsets, classes, boxes;
    // A float that multiplies gradients, or 0.
    u64 loss_scale;
    // LOSS_VALUES floats.
    u64 values;
    // Scratch, by branch: corners in cells (slots, 4), owner (slots), target score (slots), largest metric and CIoU of
    // each box, partial sums of target scores, of foreground anchors, of the three terms. Once: corners in pixels and
    // image of each box.
    u64 corners, owner, score, box_corners, box_image, maxima, score_sums, score_counts, term_sums;
    u32 branches, levels, batch, slots, tiles, nc, max_boxes, topk;
    u32 score_blocks, term_blocks;
    float input_h, input_w;
    float alpha, beta, positive_weight, gamma, smoothing;
    // 1 for exponents 0.5 and 6.
    u32 product;
};

struct Corners {
    float x0, y0, x1, y1;
};

template <typename T> __device__ __forceinline__ T* at(u64 address, u64 index = 0) {
    return reinterpret_cast<T*>(address) + index;
}

__device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
__device__ __forceinline__ u32 warp() { return threadIdx.x / 32; }

// Boxes of the batch, within what there is memory for.
__device__ __forceinline__ u32 box_count(const Args& a) { return min(at<u32>(a.offsets)[a.batch], a.max_boxes); }

// Class of a box; a wrong one is cut so that it reads no foreign memory (it makes the loss not a number elsewhere).
__device__ __forceinline__ u32 box_class(const Args& a, u32 box) { return min(at<u32>(a.classes)[box], a.nc - 1); }

__device__ __forceinline__ u32 level_of(const Args& a, u32 slot) {
    u32 level = a.levels - 1;
    while (level > 0 && a.level[level].first * a.batch > slot) level--;
    return level;
}

// Where a slot lies: row of its level's maps, image, and cell.
struct Place {
    u32 level, row, image, x, y;
};
__device__ __forceinline__ Place place_of(const Args& a, u32 slot) {
    Place p;
    p.level = level_of(a, slot);
    const Level& level = a.level[p.level];
    u32 cells = level.h * level.w;
    p.row = slot - level.first * a.batch;
    p.image = p.row / cells;
    u32 cell = p.row - p.image * cells;
    p.y = cell / level.w;
    p.x = cell - p.y * level.w;
    return p;
}

// Sum over the block in one fixed order, known to thread 0 alone. All threads take part.
__device__ __forceinline__ double block_sum(double v) {
    __shared__ double of_warp[WARPS];
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) v += __shfl_xor_sync(ALL, v, step);
    __syncthreads();
    if (lane() == 0) of_warp[warp()] = v;
    __syncthreads();
    double sum = 0.0;
    if (threadIdx.x == 0) {
        for (u32 w = 0; w < WARPS; w++) sum += of_warp[w];
    }
    return sum;
}
