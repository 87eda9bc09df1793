// The task-aligned assigner (TOOD, Feng et al. 2021) by the rules of `detect::assigner`, in four kernels.
//
// loss_prepare decodes every anchor's box and the targets; loss_claim lets each box claim its best candidates;
// loss_settle gives contested anchors to the box of highest CIoU and finds each box's maxima; loss_score makes target
// scores of the metrics and sums them. A claim is one compare-and-swap whose outcome depends on how many boxes claim,
// not on their order; maxima are integer maxima of the bits of numbers that are not negative; sums have fixed orders.
//
// Two branches of batch 64 at 640 px: loss_prepare reads the box logits, 275 MB, and writes corners and owners, 21 MB:
// 0.07 ms at 4.2 TB/s, the rate of a copy. The others touch what the boxes cover: about 50 MB, mostly in the
// second-level cache. Measured on an H200, 2026-11-30: loss_claim 0.08 ms, the whole loss with terms.cu 0.46 ms.

// Centres closer than this to a side lie outside of the box.
constexpr float CENTRE_EPS = 1e-9f;
// Boxes of more candidates are walked by all warps of a block.
constexpr u32 COOPERATE = 128;

// Expected bin of 16 logits.
__device__ __forceinline__ float expected_distance(const float* logits) {
    float x[BINS];
#pragma unroll
    for (u32 i = 0; i < BINS / 4; i++) {
        Pack<float> four = load(logits + 4 * i);
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[4 * i + j] = four.v[j];
    }
    float largest = x[0];
#pragma unroll
    for (u32 i = 1; i < BINS; i++) largest = x[i] > largest ? x[i] : largest;
    float sum = 0.0f, weighted = 0.0f;
#pragma unroll
    for (u32 i = 0; i < BINS; i++) {
        float e = expf(x[i] - largest);
        sum += e;
        weighted += float(i) * e;
    }
    return weighted / sum;
}

// Corners of all anchors in cells, all of them background; corners and image of each box; maxima of 0. A thread decodes
// one side of an anchor, so that a warp writes 128 consecutive bytes.
extern "C" __global__ void __launch_bounds__(THREADS) loss_prepare(const __grid_constant__ Args a) {
    u32 branch = blockIdx.y;
    u32 sides = 4 * a.slots;
    float* corners = at<float>(a.corners, u64(branch) * sides);
    u32* owners = at<u32>(a.owner, u64(branch) * a.slots);
    for (u32 base = blockIdx.x * THREADS; base < sides; base += gridDim.x * THREADS) {
        u32 i = base + threadIdx.x;
        bool inside = i < sides;
        u32 slot = (inside ? i : base) / 4, side = i % 4;
        Place p = place_of(a, slot);
        const Maps& maps = a.maps[branch][p.level];
        float distance = expected_distance(at<const float>(maps.boxes, u64(p.row) * maps.box_pitch + side * BINS));
        float centre = float(side % 2 == 0 ? p.x : p.y) + 0.5f;
        float corner = side < 2 ? centre - distance : centre + distance;
        bool finite = fabsf(corner) <= 3.402823466e38f;
        u32 broken = __ballot_sync(ALL, inside && !finite) >> (lane() & ~3u) & 15u;
        if (inside) {
            corners[i] = corner;
            if (side == 0) owners[slot] = broken ? BROKEN : BACKGROUND;
        }
    }
    u32 count = box_count(a);
    const u32* offsets = at<const u32>(a.offsets);
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        u32* maxima = at<u32>(a.maxima, 2 * (u64(branch) * a.max_boxes + i));
        maxima[0] = maxima[1] = 0;
        if (branch > 0) continue;
        const float* b = at<const float>(a.boxes, 4 * u64(i));
        float x = mul(b[0], a.input_w), y = mul(b[1], a.input_h);
        float half_w = mul(b[2], a.input_w) / 2.0f, half_h = mul(b[3], a.input_h) / 2.0f;
        at<Corners>(a.box_corners)[i] = {sub(x, half_w), sub(y, half_h), add(x, half_w), add(y, half_h)};
        // The last image whose boxes start at or before this one.
        u32 low = 0, high = a.batch;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (offsets[middle] <= i) low = middle;
            else high = middle;
        }
        at<u32>(a.box_image)[i] = low;
    }
}

struct Range {
    u32 start, end;
};

// Cells of one axis whose centres lie strictly between two sides in pixels.
__device__ __forceinline__ Range cells_inside(float low, float high, u32 stride, u32 cells) {
    float size = float(stride), last = float(cells);
    auto inside = [&](u32 cell) {
        float centre = mul(add(float(cell), 0.5f), size);
        return sub(centre, low) > CENTRE_EPS && sub(high, centre) > CENTRE_EPS;
    };
    // One cell wider than needed at either end, then exact: rounding must not decide.
    u32 start = u32(fminf(fmaxf(sub(low / size, 1.5f), 0.0f), last));
    u32 end = u32(fminf(fmaxf(add(high / size, 1.5f), 0.0f), last));
    while (start < end && !inside(start)) start++;
    while (end > start && !inside(end - 1)) end--;
    return {start, max(start, end)};
}

struct Rectangle {
    Range x, y;
};
__device__ __forceinline__ Rectangle rectangle_of(const Corners& box, const Level& level) {
    return {cells_inside(box.x0, box.x1, level.stride, level.w), cells_inside(box.y0, box.y1, level.stride, level.h)};
}

// Candidates of a box over all levels. Corners that sum to 0 mark what is no box.
__device__ __forceinline__ u32 candidates(const Args& a, const Corners& box) {
    if (!(add(add(add(box.x0, box.y0), box.x1), box.y1) > 0.0f)) return 0;
    u32 count = 0;
    for (u32 l = 0; l < a.levels; l++) {
        Rectangle r = rectangle_of(box, a.level[l]);
        count += (r.x.end - r.x.start) * (r.y.end - r.y.start);
    }
    return count;
}

// The best candidates over a warp: lane i holds the one of rank i. Metric 0 where there is none.
struct Best {
    float metric;
    u32 slot;
};

// Takes each lane's candidate into the ranks: larger metrics first, equal ones by lower slot. Only metrics above 0.
__device__ __forceinline__ void insert(Best& best, float metric, u32 slot, u32 topk) {
    float weakest = __shfl_sync(ALL, best.metric, topk - 1);
    u32 waiting = __ballot_sync(ALL, metric > 0.0f && metric >= weakest);
    while (waiting) {
        u32 source = __ffs(waiting) - 1;
        waiting &= waiting - 1;
        float m = __shfl_sync(ALL, metric, source);
        u32 s = __shfl_sync(ALL, slot, source);
        u32 rank = __popc(__ballot_sync(ALL, best.metric > m || (best.metric == m && best.slot < s)));
        float metric_before = __shfl_up_sync(ALL, best.metric, 1);
        u32 slot_before = __shfl_up_sync(ALL, best.slot, 1);
        if (lane() > rank) best = {metric_before, slot_before};
        if (lane() == rank) best = {m, s};
    }
}

// Ranks every `parts`-th group of 32 candidates of a box, from group `part` on. All lanes take part.
__device__ __forceinline__ Best select(const Args& a, u32 branch, u32 box, u32 part, u32 parts) {
    Best best = {0.0f, ALL};
    Corners target = at<const Corners>(a.box_corners)[box];
    u32 image = at<const u32>(a.box_image)[box], cls = box_class(a, box);
    const Corners* corners = at<const Corners>(a.corners, u64(branch) * a.slots);
    for (u32 l = 0; l < a.levels; l++) {
        const Level& level = a.level[l];
        const Maps& maps = a.maps[branch][l];
        Rectangle r = rectangle_of(target, level);
        u32 width = r.x.end - r.x.start, cells = width * (r.y.end - r.y.start);
        for (u32 first = 32 * part; first < cells; first += 32 * parts) {
            u32 i = first + lane();
            float weakest = __shfl_sync(ALL, best.metric, a.topk - 1);
            float metric = 0.0f;
            u32 slot = ALL;
            if (i < cells) {
                u32 row_of_box = i / width;
                u32 x = r.x.start + i - row_of_box * width, y = r.y.start + row_of_box;
                u32 row = image * (level.h * level.w) + y * level.w + x;
                slot = level.first * a.batch + row;
                float logit = at<const float>(maps.classes, u64(row) * maps.class_pitch)[cls];
                Corners predicted = scaled(corners[slot], float(level.stride));
                Pair pair = pair_of(target, predicted);
                float score = score_of(logit);
                // CIoU never exceeds IoU: what cannot pass with IoU needs no arc tangents.
                if (pair.iou > 0.0f && !(a.product && metric_of(a, score, pair.iou) < weakest)) {
                    metric = metric_of(a, score, fmaxf(ciou_of(target, predicted, pair), 0.0f));
                }
            }
            insert(best, metric, slot, a.topk);
        }
    }
    return best;
}

// One claim is recorded by its box, more than one as contested, whatever their order.
__device__ __forceinline__ void claim(const Args& a, u32 branch, u32 box, const Best& best) {
    if (lane() >= a.topk || !(best.metric > 0.0f)) return;
    u32* owner = at<u32>(a.owner, u64(branch) * a.slots + best.slot);
    if (atomicCAS(owner, BACKGROUND, box) != BACKGROUND) atomicExch(owner, CONTESTED);
}

// A warp takes a box of few candidates, the block one of many. Boxes are dealt out over the grid, so that no block has
// two while another has none.
extern "C" __global__ void __launch_bounds__(THREADS) loss_claim(const __grid_constant__ Args a) {
    __shared__ float metrics[WARPS][32];
    __shared__ u32 slots[WARPS][32];
    __shared__ bool large[WARPS];
    u32 branch = blockIdx.y, count = box_count(a);
    for (u32 first = blockIdx.x; first < count; first += gridDim.x * WARPS) {
        u32 own = first + warp() * gridDim.x;
        u32 cells = own < count ? candidates(a, at<const Corners>(a.box_corners)[own]) : 0;
        if (lane() == 0) large[warp()] = cells > COOPERATE;
        if (cells > 0 && cells <= COOPERATE) claim(a, branch, own, select(a, branch, own, 0, 1));
        __syncthreads();
        for (u32 w = 0; w < WARPS; w++) {
            if (!large[w]) continue;
            u32 box = first + w * gridDim.x;
            Best best = select(a, branch, box, warp(), WARPS);
            metrics[warp()][lane()] = best.metric;
            slots[warp()][lane()] = best.slot;
            __syncthreads();
            if (warp() == 0) {
                for (u32 o = 1; o < WARPS; o++) insert(best, metrics[o][lane()], slots[o][lane()], a.topk);
                claim(a, branch, box, best);
            }
            __syncthreads();
        }
        __syncthreads();
    }
}

// Box of highest CIoU with a prediction among those of an image, claiming or not; the lower number of equals. All lanes
// of a warp take part and know the result.
__device__ __forceinline__ u32 best_overlap(const Args& a, u32 image, const Corners& predicted) {
    u32 count = box_count(a);
    u32 start = min(at<const u32>(a.offsets)[image], count), end = min(at<const u32>(a.offsets)[image + 1], count);
    float best = 0.0f;
    u32 box = start;
    for (u32 i = start + lane(); i < end; i += 32) {
        Corners t = at<const Corners>(a.box_corners)[i];
        bool apart = t.x0 >= predicted.x1 || t.x1 <= predicted.x0 || t.y0 >= predicted.y1 || t.y1 <= predicted.y0;
        if (apart) continue;
        Pair pair = pair_of(t, predicted);
        if (pair.iou <= best) continue;
        float ciou = ciou_of(t, predicted, pair);
        if (ciou > best) best = ciou, box = i;
    }
    __syncwarp();
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(ALL, best, step);
        u32 its = __shfl_xor_sync(ALL, box, step);
        if (other > best || (other == best && its < box)) best = other, box = its;
    }
    return box;
}

// Settles contested anchors, writes each foreground anchor's metric and finds the largest metric and CIoU of each box
// over the anchors it keeps.
extern "C" __global__ void __launch_bounds__(THREADS) loss_settle(const __grid_constant__ Args a) {
    u32 branch = blockIdx.y;
    u32* owners = at<u32>(a.owner, u64(branch) * a.slots);
    u32 tiles = (a.slots + 31) / 32;
    for (u32 tile = blockIdx.x * WARPS + warp(); tile < tiles; tile += gridDim.x * WARPS) {
        u32 slot = tile * 32 + lane();
        u32 owner = slot < a.slots ? owners[slot] : BACKGROUND;
        bool foreground = owner < BROKEN;
        u32 contested = __ballot_sync(ALL, owner == CONTESTED);
        if (!__any_sync(ALL, foreground)) continue;
        Place p = {0, 0, 0, 0, 0};
        Corners predicted = {0.0f, 0.0f, 0.0f, 0.0f};
        if (foreground) {
            p = place_of(a, slot);
            predicted = scaled(at<const Corners>(a.corners, u64(branch) * a.slots)[slot], float(a.level[p.level].stride));
        }
        while (contested) {
            u32 source = __ffs(contested) - 1;
            contested &= contested - 1;
            Corners one = {__shfl_sync(ALL, predicted.x0, source), __shfl_sync(ALL, predicted.y0, source),
                           __shfl_sync(ALL, predicted.x1, source), __shfl_sync(ALL, predicted.y1, source)};
            u32 box = best_overlap(a, __shfl_sync(ALL, p.image, source), one);
            if (lane() == source) owners[slot] = owner = box;
        }
        // An owner beyond the boxes comes only from targets that do not fit together.
        if (!foreground || owner >= a.max_boxes) continue;
        const Maps& maps = a.maps[branch][p.level];
        float logit = at<const float>(maps.classes, u64(p.row) * maps.class_pitch)[box_class(a, owner)];
        Corners target = at<const Corners>(a.box_corners)[owner];
        float ciou = fmaxf(ciou_of(target, predicted, pair_of(target, predicted)), 0.0f);
        float metric = metric_of(a, score_of(logit), ciou);
        at<float>(a.score, u64(branch) * a.slots)[slot] = metric;
        u32* maxima = at<u32>(a.maxima, 2 * (u64(branch) * a.max_boxes + owner));
        if (metric > 0.0f) atomicMax(maxima, __float_as_uint(metric));
        if (ciou > 0.0f) atomicMax(maxima + 1, __float_as_uint(ciou));
    }
}

// True where this thread's share of the targets does not describe a batch.
__device__ __forceinline__ bool wrong_targets(const Args& a) {
    u32 count = box_count(a);
    const u32* offsets = at<const u32>(a.offsets);
    u32 first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    bool wrong = first == 0 && (offsets[0] != 0 || offsets[a.batch] > a.max_boxes);
    for (u32 i = first; i < a.batch; i += step) wrong |= offsets[i] > offsets[i + 1];
    for (u32 i = first; i < count; i += step) wrong |= at<const u32>(a.classes)[i] >= a.nc;
    return wrong;
}

// Target scores of the foreground anchors, and for each block their sum and number. Targets that do not fit together
// make the sum, and with it every loss, not a number.
extern "C" __global__ void __launch_bounds__(THREADS) loss_score(const __grid_constant__ Args a) {
    u32 branch = blockIdx.y;
    const u32* owners = at<const u32>(a.owner, u64(branch) * a.slots);
    float* scores = at<float>(a.score, u64(branch) * a.slots);
    double sum = 0.0;
    u32 count = 0;
    for (u32 slot = blockIdx.x * THREADS + threadIdx.x; slot < a.slots; slot += gridDim.x * THREADS) {
        u32 owner = owners[slot];
        if (owner >= a.max_boxes) continue;
        const float* maxima = at<const float>(a.maxima, 2 * (u64(branch) * a.max_boxes + owner));
        float score = mul(scores[slot], maxima[1]) / add(maxima[0], 1e-9f);
        scores[slot] = score;
        sum += double(score);
        count++;
    }
    bool wrong = __syncthreads_or(wrong_targets(a));
    sum = block_sum(sum);
    double counted = block_sum(double(count));
    if (threadIdx.x == 0) {
        u32 block = branch * a.score_blocks + blockIdx.x;
        at<double>(a.score_sums)[block] = wrong ? __longlong_as_double(0x7FF8000000000000ll) : sum;
        at<u32>(a.score_counts)[block] = u32(counted);
    }
}
