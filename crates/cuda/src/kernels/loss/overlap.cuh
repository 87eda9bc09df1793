// Overlap of two boxes and the gradient of CIoU (Zheng et al. 2020) in float32, as `detect::boxes` has them: every
// product and sum is rounded on its own and in the order written there, so that both sides rank boxes alike.

constexpr float OVERLAP_EPS = 1e-7f;

__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }

__device__ __forceinline__ Corners scaled(const Corners& c, float by) {
    return {mul(c.x0, by), mul(c.y0, by), mul(c.x1, by), mul(c.y1, by)};
}

// Eps is added to the heights (not the widths) and once more to the union.
struct Pair {
    float w1, h1, w2, h2, inter_w, inter_h, inter, joint, iou;
};
__device__ __forceinline__ Pair pair_of(const Corners& a, const Corners& b) {
    Pair p;
    p.w1 = sub(a.x1, a.x0);
    p.h1 = add(sub(a.y1, a.y0), OVERLAP_EPS);
    p.w2 = sub(b.x1, b.x0);
    p.h2 = add(sub(b.y1, b.y0), OVERLAP_EPS);
    p.inter_w = sub(fminf(a.x1, b.x1), fmaxf(a.x0, b.x0));
    p.inter_h = sub(fminf(a.y1, b.y1), fmaxf(a.y0, b.y0));
    p.inter = mul(fmaxf(p.inter_w, 0.0f), fmaxf(p.inter_h, 0.0f));
    p.joint = add(sub(add(mul(p.w1, p.h1), mul(p.w2, p.h2)), p.inter), OVERLAP_EPS);
    p.iou = p.inter / p.joint;
    return p;
}

// Squared centre distance, squared diagonal of the hull, and what they are made of.
struct Penalty {
    float hull_w, hull_h, dx, dy, distance, diagonal;
};
__device__ __forceinline__ Penalty penalty_of(const Corners& a, const Corners& b) {
    Penalty p;
    p.hull_w = sub(fmaxf(a.x1, b.x1), fminf(a.x0, b.x0));
    p.hull_h = sub(fmaxf(a.y1, b.y1), fminf(a.y0, b.y0));
    p.dx = sub(sub(add(b.x0, b.x1), a.x0), a.x1);
    p.dy = sub(sub(add(b.y0, b.y1), a.y0), a.y1);
    p.distance = add(mul(p.dx, p.dx), mul(p.dy, p.dy)) / 4.0f;
    p.diagonal = add(add(mul(p.hull_w, p.hull_w), mul(p.hull_h, p.hull_h)), OVERLAP_EPS);
    return p;
}

struct Aspect {
    float v, alpha, angle;
};
__device__ __forceinline__ Aspect aspect_of(const Pair& p) {
    Aspect r;
    r.angle = sub(atanf(p.w2 / p.h2), atanf(p.w1 / p.h1));
    // 4 / pi^2
    r.v = mul(0.40528473456935109f, mul(r.angle, r.angle));
    r.alpha = r.v / add(sub(r.v, p.iou), float(1.0 + 1e-7));
    return r;
}

__device__ __forceinline__ float ciou_of(const Corners& a, const Corners& b, const Pair& pair) {
    Aspect aspect = aspect_of(pair);
    Penalty p = penalty_of(a, b);
    return sub(pair.iou, add(p.distance / p.diagonal, mul(aspect.v, aspect.alpha)));
}

// Share of a minimum's or maximum's gradient: all for the chosen side, half where both are equal.
__device__ __forceinline__ float share(bool chosen, bool tie) { return chosen ? 1.0f : tie ? 0.5f : 0.0f; }

// CIoU and its gradient for the corners of `a`; alpha is a constant.
__device__ __forceinline__ float ciou_with_gradient(const Corners& a, const Corners& b, Corners& gradient) {
    Pair pair = pair_of(a, b);
    Aspect aspect = aspect_of(pair);
    Penalty p = penalty_of(a, b);
    float value = sub(pair.iou, add(p.distance / p.diagonal, mul(aspect.v, aspect.alpha)));

    float joint2 = mul(pair.joint, pair.joint);
    float d_inter = add(pair.joint, pair.inter) / joint2;
    float d_area = -pair.inter / joint2;
    float d_inter_w = pair.inter_w > 0.0f ? mul(d_inter, fmaxf(pair.inter_h, 0.0f)) : 0.0f;
    float d_inter_h = pair.inter_h > 0.0f ? mul(d_inter, fmaxf(pair.inter_w, 0.0f)) : 0.0f;
    float d_diagonal = p.distance / mul(p.diagonal, p.diagonal);
    float d_hull_w = mul(mul(d_diagonal, 2.0f), p.hull_w);
    float d_hull_h = mul(mul(d_diagonal, 2.0f), p.hull_h);
    float d_centre_x = p.dx / mul(2.0f, p.diagonal);
    float d_centre_y = p.dy / mul(2.0f, p.diagonal);
    // 8 / pi^2
    float d_angle = mul(mul(aspect.alpha, 0.81056946913870217f), aspect.angle);
    float radius = add(mul(pair.w1, pair.w1), mul(pair.h1, pair.h1));
    float d_w1 = add(mul(d_area, pair.h1), mul(d_angle, pair.h1) / radius);
    float d_h1 = sub(mul(d_area, pair.w1), mul(d_angle, pair.w1) / radius);

    auto lower = [](float a, float b, float d_inter, float d_hull, float d_centre, float d_side) {
        float own = sub(mul(-d_inter, share(a > b, a == b)), mul(d_hull, share(a < b, a == b)));
        return sub(add(own, d_centre), d_side);
    };
    auto upper = [](float a, float b, float d_inter, float d_hull, float d_centre, float d_side) {
        float own = add(mul(d_inter, share(a < b, a == b)), mul(d_hull, share(a > b, a == b)));
        return add(add(own, d_centre), d_side);
    };
    gradient.x0 = lower(a.x0, b.x0, d_inter_w, d_hull_w, d_centre_x, d_w1);
    gradient.y0 = lower(a.y0, b.y0, d_inter_h, d_hull_h, d_centre_y, d_h1);
    gradient.x1 = upper(a.x1, b.x1, d_inter_w, d_hull_w, d_centre_x, d_w1);
    gradient.y1 = upper(a.y1, b.y1, d_inter_h, d_hull_h, d_centre_y, d_h1);
    return value;
}

// Class score: no overflow at either end, full precision, because ranks depend on it.
__device__ __forceinline__ float score_of(float logit) {
    float e = expf(-fabsf(logit));
    return (logit > 0.0f ? 1.0f : e) / add(1.0f, e);
}

// score^alpha * ciou^beta in this one order everywhere.
__device__ __forceinline__ float metric_of(const Args& a, float score, float ciou) {
    if (a.product) {
        float squared = mul(ciou, ciou);
        return mul(mul(mul(sqrtf(score), squared), squared), squared);
    }
    return mul(powf(score, a.alpha), powf(ciou, a.beta));
}
