// Recipes to pixels: pictures on a grey canvas, the canvas warped, a second layer blended over it, colours changed, the
// result flipped. The same numbers as data's renderer on the processor: whole numbers where it has whole numbers, and
// float64 and float32 operations that are rounded one by one (no fused multiply-add) where it has those.
//
// No canvas is ever made. A pixel of the output finds its place on the canvas, the place finds the picture that was drawn
// there last, and its four neighbours are read straight from the picture; only where they do not lie in one picture are
// they looked up one by one.
//
// Writes 3 bytes a pixel once and reads about as many: where the zoom is 1, 64 pictures of 640x640 are 79 + 79 MB, 33 us
// at 4.8 TB/s; mixup reads twice. A pixel costs some hundred instructions, which bound it below memory: 26 million pixels
// are 80 us of the multiprocessors of an H200.

// Rows of the output that a block renders.
constexpr u32 ROWS = 8;
constexpr u32 FILL = 114;
constexpr u32 GREY = FILL | FILL << 8 | FILL << 16;
// Bits behind the point of source coordinates, and the largest of them in pixels.
constexpr int STEP_BITS = 32;
constexpr double FAR = 1e8;

// A picture on the canvas.
struct RenderTile {
    u64 at; // RGB, row-major
    u32 width, height;
    int x0, y0, x1, y1;               // the part of the canvas that shows it
    int left, top;                    // where its first pixel lies, or would lie
    u32 scaled_width, scaled_height;  // size on the canvas
};

enum Warp { NOWHERE = 0, AFFINE = 1, PERSPECTIVE = 2 };

// Pictures on a canvas, and the way from output pixels to canvas pixels.
struct RenderLayer {
    double inverse[9];
    i64 step_u, step_v; // of an affine way, from pixel to pixel of a row
    u64 mask;           // offset of the first word in the extras: bit x of a row is a marked pixel
    u32 mask_row, mask_rows, mask_pitch;
    u32 canvas_width;
    u32 warp, tiles;
    RenderTile tile[4]; // drawn in this order
};

struct RenderImage {
    RenderLayer layer[2];
    double ratio; // weight of the first layer
    u64 colours;  // offset of three tables of 256 bytes in the extras
    u32 layers, coloured, flip_ud, flip_lr;
};
static_assert(sizeof(RenderTile) == 48 && sizeof(RenderLayer) == 312 && sizeof(RenderImage) == 656, "as in render.rs");

struct RenderArgs {
    u64 images, extras, out;
    u32 height, width;
};

// What a block keeps of its image.
struct Shared {
    RenderImage image;
    i64 start[2][ROWS][2]; // u and v of the first pixel of a row
    int by_value[256], by_range[256];
    u8 tables[3][256];
};

__device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ u32 byte(u32 colour, u32 channel) { return colour >> (8 * channel) & 255; }

__device__ __forceinline__ i64 fixed(double pixels) {
    return i64(mul(fmin(fmax(pixels, -FAR), FAR), 4294967296.0));
}

// a + b, kept in range.
__device__ __forceinline__ i64 plus(i64 a, i64 b) {
    i64 sum = i64(u64(a) + u64(b));
    if (((a ^ sum) & (b ^ sum)) < 0) return i64(0x7FFFFFFFFFFFFFFFull + u64(b < 0));
    return sum;
}

// start + n * step, kept in range.
__device__ __forceinline__ i64 stepped(i64 start, i64 step, u32 n) {
    i64 low = i64(u64(step) * n);
    if (__mul64hi(step, i64(n)) != low >> 63) return i64(0x7FFFFFFFFFFFFFFFull + u64(step < 0));
    return plus(start, low);
}

__device__ __forceinline__ u32 three_bytes(const u8* p) { return p[0] | u32(p[1]) << 8 | u32(p[2]) << 16; }

// Two pixels from any address, by the aligned words that hold them.
struct Two { u32 low, high; };
__device__ __forceinline__ Two two_pixels(u64 at) {
    const u32* words = reinterpret_cast<const u32*>(at & ~3ull);
    u32 skip = u32(at & 3);
    u32 a = words[0], b = words[1], c = skip == 3 ? words[2] : 0;
    return {__funnelshift_r(a, b, 8 * skip), __funnelshift_r(b, c, 8 * skip)};
}

// The two places of an axis that a scaled place lies between, and the weight of the second, of 2048.
struct Taps { u32 first, second; int weight; };
__device__ __forceinline__ Taps taps(u32 i, u32 from, u32 to) {
    double scale = double(from) / double(to);
    double place = add(mul(add(double(i), 0.5), scale), -0.5);
    place = fmin(fmax(place, 0.0), double(from - 1));
    u32 first = u32(place);
    return {first, min(first + 1, from - 1), int(rint(mul(place - double(first), 2048.0)))};
}

// Pixel (x, y) of a picture at its size on the canvas.
__device__ __forceinline__ u32 fetch(const RenderTile& t, u32 x, u32 y) {
    const u8* data = reinterpret_cast<const u8*>(t.at);
    if (t.scaled_width == t.width && t.scaled_height == t.height)
        return three_bytes(data + (u64(y) * t.width + x) * 3);
    Taps h = taps(x, t.width, t.scaled_width), v = taps(y, t.height, t.scaled_height);
    const u8 *top = data + u64(v.first) * t.width * 3, *bottom = data + u64(v.second) * t.width * 3;
    u32 colour = 0;
    for (u32 c = 0; c < 3; c++) {
        u32 l = h.first * 3 + c, r = h.second * 3 + c;
        int a = (2048 - h.weight) * top[l] + h.weight * top[r];
        int b = (2048 - h.weight) * bottom[l] + h.weight * bottom[r];
        colour |= u32(((2048 - v.weight) * a + v.weight * b + (1 << 21)) >> 22) << (8 * c);
    }
    return colour;
}

// Whether a canvas pixel takes the colour of its mirror image: whether that lies in a marked outline.
__device__ __forceinline__ bool pasted(const RenderLayer& l, u64 extras, int x, int y) {
    u32 row = u32(y) - l.mask_row, mirrored = l.canvas_width - 1 - u32(x);
    if (row >= l.mask_rows || mirrored >= l.canvas_width) return false;
    const u32* words = reinterpret_cast<const u32*>(extras + l.mask);
    return words[u64(row) * l.mask_pitch + mirrored / 32] >> mirrored % 32 & 1;
}

// Colour of a canvas pixel, which may lie outside.
__device__ __forceinline__ u32 canvas(const RenderLayer& l, u64 extras, int x, int y) {
    if (pasted(l, extras, x, y)) x = int(l.canvas_width - 1) - x;
    for (int k = int(l.tiles) - 1; k >= 0; k--) {
        const RenderTile& t = l.tile[k];
        if (x >= t.x0 && x < t.x1 && y >= t.y0 && y < t.y1) return fetch(t, u32(x - t.left), u32(y - t.top));
    }
    return GREY;
}

// Colour at (u, v), in 1/32 pixel.
__device__ __forceinline__ u32 sample(const RenderLayer& l, u64 extras, int u, int v) {
    int x = u >> 5, y = v >> 5;
    u32 fx = u & 31, fy = v & 31;
    auto weight = [&](u32 k) { return (k & 1 ? fx : 32 - fx) * (k & 2 ? fy : 32 - fy); };
    bool one_by_one = pasted(l, extras, x, y) || pasted(l, extras, x + 1, y) || pasted(l, extras, x, y + 1) ||
                      pasted(l, extras, x + 1, y + 1);
    bool anything = one_by_one;
    for (int k = int(l.tiles) - 1; k >= 0 && !anything; k--) {
        const RenderTile& t = l.tile[k];
        // The four neighbours touch what it shows.
        anything = x + 1 >= t.x0 && x < t.x1 && y + 1 >= t.y0 && y < t.y1;
        if (!anything) continue;
        bool inside = x >= t.x0 && x + 1 < t.x1 && y >= t.y0 && y + 1 < t.y1;
        if (inside && t.scaled_width == t.width && t.scaled_height == t.height) {
            u64 at = t.at + (u64(u32(y - t.top)) * t.width + u32(x - t.left)) * 3;
            Two top = two_pixels(at), bottom = two_pixels(at + u64(t.width) * 3);
            u32 right = top.low >> 24 | top.high << 8, right_below = bottom.low >> 24 | bottom.high << 8;
            u32 colour = 0;
#pragma unroll
            for (u32 c = 0; c < 3; c++) {
                u32 sum = weight(0) * byte(top.low, c) + weight(1) * byte(right, c) +
                          weight(2) * byte(bottom.low, c) + weight(3) * byte(right_below, c);
                colour |= ((sum + 512) >> 10) << (8 * c);
            }
            return colour;
        }
        one_by_one = true;
    }
    if (!one_by_one) return GREY;
    u32 sums[3] = {512, 512, 512};
#pragma unroll 1
    for (u32 k = 0; k < 4; k++) {
        if (weight(k) == 0) continue;
        u32 colour = canvas(l, extras, x + int(k & 1), y + int(k >> 1));
#pragma unroll
        for (u32 c = 0; c < 3; c++) sums[c] += weight(k) * byte(colour, c);
    }
    return sums[0] >> 10 | sums[1] >> 10 << 8 | sums[2] >> 10 << 16;
}

// Colour of a layer at a pixel of the output, before flips.
__device__ __forceinline__ u32 layer(const RenderLayer& l, u64 extras, const i64* start, u32 x, u32 y) {
    if (l.warp == AFFINE) {
        constexpr i64 HALF = 1ll << (STEP_BITS - 6);
        int u = int(plus(stepped(start[0], l.step_u, x), HALF) >> (STEP_BITS - 5));
        int v = int(plus(stepped(start[1], l.step_v, x), HALF) >> (STEP_BITS - 5));
        return sample(l, extras, u, v);
    }
    if (l.warp == PERSPECTIVE) {
        const double* m = l.inverse;
        double at[3];
        for (int i = 0; i < 3; i++)
            at[i] = add(add(mul(m[3 * i], double(x)), mul(m[3 * i + 1], double(y))), m[3 * i + 2]);
        double scale = at[2] != 0.0 ? 32.0 / at[2] : 0.0;
        return sample(l, extras, __double2int_rn(mul(at[0], scale)), __double2int_rn(mul(at[1], scale)));
    }
    return GREY;
}

__device__ __forceinline__ u32 blend(u32 a, u32 b, double ratio) {
    double rest = 1.0 - ratio;
    u32 colour = 0;
#pragma unroll
    for (u32 c = 0; c < 3; c++)
        colour |= u32(add(mul(double(byte(a, c)), ratio), mul(double(byte(b, c)), rest))) << (8 * c);
    return colour;
}

// Hue (0 to 179), saturation and value through their tables, as OpenCV's 8-bit HSV.
__device__ __forceinline__ u32 coloured(const Shared& s, u32 colour) {
    int r = byte(colour, 0), g = byte(colour, 1), b = byte(colour, 2);
    int value = max(r, max(g, b)), range = value - min(r, min(g, b));
    int saturation = (range * s.by_value[value] + (1 << 11)) >> 12;
    int sector = value == r ? g - b : value == g ? b - r + 2 * range : r - g + 4 * range;
    int hue = (sector * s.by_range[range] + (1 << 11)) >> 12;
    if (hue < 0) hue += 180;

    u32 top = s.tables[2][value];
    float v = float(top), sat = __fmul_rn(float(s.tables[1][saturation]), 1.0f / 255.0f);
    float turn = __fmul_rn(float(s.tables[0][hue]), 1.0f / 30.0f);
    u32 k = u32(turn);
    float f = turn - float(k);
    auto times = [&](float share) { return u32(__fadd_rn(__fmul_rn(v, __fadd_rn(1.0f, -share)), 0.5f)); };
    u32 p = times(sat), q = times(__fmul_rn(sat, f)), t = times(__fmul_rn(sat, __fadd_rn(1.0f, -f)));
    switch (k) {
    case 0: return top | t << 8 | p << 16;
    case 1: return q | top << 8 | p << 16;
    case 2: return p | top << 8 | t << 16;
    case 3: return p | q << 8 | top << 16;
    case 4: return t | p << 8 | top << 16;
    default: return top | p << 8 | q << 16;
    }
}

// round(c * 2^12 / i), which is never halfway between two; 0 for 0.
__device__ __forceinline__ int reciprocal(u32 c, u32 i) { return i ? int(((c << 13) + i) / (2 * i)) : 0; }

// What the block needs beside its image: row starts and colour tables.
__device__ __forceinline__ void tables(const RenderArgs& a, Shared& s, u32 first) {
    for (u32 i = threadIdx.x; i < 2 * ROWS; i += blockDim.x) {
        const RenderLayer& l = s.image.layer[i / ROWS];
        u32 row = i % ROWS, y = first + row;
        if (i / ROWS >= s.image.layers || l.warp != AFFINE || y >= a.height) continue;
        double at = s.image.flip_ud ? a.height - 1 - y : y;
        const double* m = l.inverse;
        s.start[i / ROWS][row][0] = fixed(add(mul(m[1], at), m[2]) / m[8]);
        s.start[i / ROWS][row][1] = fixed(add(mul(m[4], at), m[5]) / m[8]);
    }
    if (!s.image.coloured) return;
    const u8* from = reinterpret_cast<const u8*>(a.extras + s.image.colours);
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) {
        s.by_value[i] = reciprocal(255, i);
        s.by_range[i] = reciprocal(30, i);
        for (u32 c = 0; c < 3; c++) s.tables[c][i] = from[256 * c + i];
    }
}

// A block renders a few rows of one image, a thread four pixels of a row at a time.
extern "C" __global__ void __launch_bounds__(256) render(RenderArgs a) {
    __shared__ Shared s;
    const u32* from = reinterpret_cast<const u32*>(a.images + u64(blockIdx.y) * sizeof(RenderImage));
    for (u32 i = threadIdx.x; i < sizeof(RenderImage) / 4; i += blockDim.x)
        reinterpret_cast<u32*>(&s.image)[i] = from[i];
    __syncthreads();
    u32 first = blockIdx.x * ROWS;
    tables(a, s, first);
    __syncthreads();

    u32 rows = min(ROWS, a.height - first), fours = (a.width + 3) / 4;
    bool aligned = a.width % 4 == 0 && a.out % 4 == 0;
    for (u32 i = threadIdx.x; i < rows * fours; i += blockDim.x) {
        u32 row = i / fours, left = (i - row * fours) * 4, y = first + row;
        u32 from_y = s.image.flip_ud ? a.height - 1 - y : y;
        // Twelve bytes of four pixels. The loops stay loops: unrolled, the code would not fit the instruction cache.
        u64 low = 0;
        u32 high = 0;
#pragma unroll 1
        for (u32 k = 0; k < 4 && left + k < a.width; k++) {
            u32 x = left + k, from_x = s.image.flip_lr ? a.width - 1 - x : x, colour = 0;
#pragma unroll 1
            for (u32 l = 0; l < s.image.layers; l++) {
                u32 next = layer(s.image.layer[l], a.extras, s.start[l][row], from_x, from_y);
                colour = l == 0 ? next : blend(colour, next, s.image.ratio);
            }
            if (s.image.coloured) colour = coloured(s, colour);
            if (k < 3) low |= u64(colour) << 24 * k;
            if (k >= 2) high |= k == 2 ? colour >> 16 : colour << 8;
        }
        u64 to = a.out + ((u64(blockIdx.y) * a.height + y) * a.width + left) * 3;
        if (aligned) {
            u32* words = reinterpret_cast<u32*>(to);
            words[0] = u32(low);
            words[1] = u32(low >> 32);
            words[2] = high;
        } else {
            u8* bytes = reinterpret_cast<u8*>(to);
            u32 count = 3 * min(4u, a.width - left);
            for (u32 b = 0; b < count; b++) bytes[b] = u8(b < 8 ? low >> 8 * b : u64(high >> 8 * (b - 8)));
        }
    }
}
