// Max pooling with 5x5 windows of stride 1 and padding 2, as max_pool.cu defines it, and its gradient in one pass.
//
// A block copies a tile of a picture with the values around it into shared memory, a slice of its channels, and works
// on 32-bit words there: two halves, or one float. Maxima of rows of five come first, then of five such rows. Of zeros
// of both signs the maximum is +0.
//
// The gradient goes to the first row that has the window's maximum, and in that row to the first column that has the
// row's: the first maximum in row-major order. So it is handed on twice along a line, and summed in float32 in the
// order of the windows each time: dy from the windows of a column to rows, then those sums from a row to columns. A tile
// with NaN, or with a window that has nothing above minus infinity, goes the slow way, window by window.
//
// The forward pass reads x, writes y: 64x20x20x256 in bf16 is 26 MB, 6.2 us at 4.2 TB/s, the rate of a copy; the
// gradient reads x and dy, writes dx: 39 MB, 9.4 us. Of 64x40x40x512, 210 MB and 315 MB: 50 us and 75 us. Measured on an
// H200, 2026-11-30, before the rewrite in this form, 64x20x20x256: 30 us and 100 us.

struct Pool5Args {
    View x, y; // the gradient: y is dy
    View dx;   // of the gradient only
    // How a grid covers a picture; mirrors max_pool_5.rs.
    u32 rows, columns; // pixels of a tile, at most
    u32 down, across;  // tiles of a picture
    u32 slices;        // of the channels
    u32 accumulate;
    u32 x_pitch, x_size;   // room for x: pixels from row to row, and in all
    u32 dy_pitch, dy_size; // likewise for dy
};

// 32-bit words of channels that a block works on.
static constexpr u32 SLICE = 16, GRAD_SLICE = 8;

// A block's tile: pixels [top, bottom) x [left, right) of picture n, and `words` of its channels from `word` on.
struct Tile {
    u32 n, word, words;
    int top, bottom, left, right;
};
template <typename T, u32 WORDS> __device__ __forceinline__ Tile tile_of(const Pool5Args& a) {
    u32 rest = blockIdx.x / a.slices, line = rest / a.across;
    Tile t;
    t.n = line / a.down;
    t.word = (blockIdx.x - rest * a.slices) * WORDS;
    t.words = min(a.x.c * u32(sizeof(T)) / 4 - t.word, WORDS);
    t.top = int((line - t.n * a.down) * a.rows);
    t.left = int((rest - line * a.across) * a.columns);
    t.bottom = min(t.top + int(a.rows), int(a.x.h));
    t.right = min(t.left + int(a.columns), int(a.x.w));
    return t;
}

// The slice's words of a pixel.
template <typename T> __device__ __forceinline__ u32* words_at(const View& v, const Tile& t, int y, int x) {
    return reinterpret_cast<u32*>(at<T>(v, (t.n * v.h + u32(y)) * v.w + u32(x), 0)) + t.word;
}

// A tile and what lies `around` it, up to `border` pixels beyond the picture but none above it, in shared memory: rows
// of `pitch` pixels of WORDS words.
template <u32 WORDS> struct Room {
    u32* words;
    u32 pitch;
    int top, bottom, left, right;
    __device__ __forceinline__ Room(u32* words, u32 pitch, const Tile& t, const View& v, int around, int border)
        : words(words), pitch(pitch), top(max(t.top - around, 0)), bottom(min(t.bottom + around, int(v.h) + border)),
          left(max(t.left - around, -border)), right(min(t.right + around, int(v.w) + border)) {}
    __device__ __forceinline__ u32* pixel(int y, int x) const {
        return words + (u32(y - top) * pitch + u32(x - left)) * WORDS;
    }
    // Requests it from `v`, 16 bytes a thread, and writes `outside` beyond the picture. The block has threads for at
    // least one row.
    template <typename T> __device__ __forceinline__ void fill(const View& v, const Tile& t, u32 outside) const {
        constexpr u32 FOURS = WORDS / 4;
        u32 across = u32(right - left) * FOURS, rows = blockDim.x / across;
        u32 row = threadIdx.x / across, i = threadIdx.x - row * across, word = i % FOURS * 4;
        if (row >= rows || word >= t.words) return;
        int x = left + int(i / FOURS);
        bool inside = x >= 0 && x < int(v.w);
        for (int y = top + int(row); y < bottom; y += int(rows)) {
            uint4* to = reinterpret_cast<uint4*>(pixel(y, x) + word);
            if (inside && y < int(v.h)) {
                copy_async(to, words_at<T>(v, t, y, x) + word);
            } else {
                *to = make_uint4(outside, outside, outside, outside);
            }
        }
    }
};
// What threads have requested, for all of the block.
__device__ __forceinline__ void wait_for_all() {
    end_group();
    wait_groups<0>();
    __syncthreads();
}

// Values of a word: their number, minus and plus infinity, and the largest and smallest of two words. NaN wins, and -0
// is below +0.
template <typename T> struct Words;
template <> struct Words<bf16> {
    static constexpr u32 COUNT = 2, LOW = 0xFF80FF80u, HIGH = 0x7F807F80u;
    static __device__ __forceinline__ u32 largest(u32 a, u32 b) {
        u32 r;
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
        return r;
    }
    static __device__ __forceinline__ u32 smallest(u32 a, u32 b) {
        u32 r;
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
        return r;
    }
};
template <> struct Words<fp16> {
    static constexpr u32 COUNT = 2, LOW = 0xFC00FC00u, HIGH = 0x7C007C00u;
    static __device__ __forceinline__ u32 largest(u32 a, u32 b) {
        u32 r;
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
        return r;
    }
    static __device__ __forceinline__ u32 smallest(u32 a, u32 b) {
        u32 r;
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
        return r;
    }
};
template <> struct Words<float> {
    static constexpr u32 COUNT = 1, LOW = 0xFF800000u, HIGH = 0x7F800000u;
    static __device__ __forceinline__ u32 largest(u32 a, u32 b) {
        float r;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(__uint_as_float(a)), "f"(__uint_as_float(b)));
        return __float_as_uint(r);
    }
    static __device__ __forceinline__ u32 smallest(u32 a, u32 b) {
        float r;
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(__uint_as_float(a)), "f"(__uint_as_float(b)));
        return __float_as_uint(r);
    }
};
template <typename T> __device__ __forceinline__ uint2 largest(uint2 a, uint2 b) {
    return make_uint2(Words<T>::largest(a.x, b.x), Words<T>::largest(a.y, b.y));
}
template <typename T> __device__ __forceinline__ uint4 largest(const uint4& a, const uint4& b) {
    using W = Words<T>;
    return make_uint4(W::largest(a.x, b.x), W::largest(a.y, b.y), W::largest(a.z, b.z), W::largest(a.w, b.w));
}
template <typename T, typename Packed> __device__ __forceinline__ Packed largest(const Packed (&v)[5]) {
    // In this order, two at a time are one instruction from compute capability 9.0 on.
    return largest<T>(largest<T>(largest<T>(largest<T>(v[0], v[1]), v[2]), v[3]), v[4]);
}
// Two words to their values and back.
template <typename T> __device__ __forceinline__ void values(uint2 w, float (&v)[4]) {
    halves(T{}, w.x, v[0], v[1]);
    halves(T{}, w.y, v[2], v[3]);
}
template <typename T> __device__ __forceinline__ void values(uint2 w, float (&v)[2]) {
    v[0] = __uint_as_float(w.x);
    v[1] = __uint_as_float(w.y);
}
template <typename T> __device__ __forceinline__ uint2 words_of(const float (&v)[4]) {
    return make_uint2(word(T{}, v[0], v[1]), word(T{}, v[2], v[3]));
}
template <typename T> __device__ __forceinline__ uint2 words_of(const float (&v)[2]) {
    return make_uint2(__float_as_uint(v[0]), __float_as_uint(v[1]));
}

// A thread has four words of a column, and walks down its part of the tile's rows.
template <typename T> __device__ __forceinline__ void max_pool_5(const Pool5Args& a) {
    extern __shared__ uint4 shared[];
    Tile t = tile_of<T, SLICE>(a);
    Room<SLICE> room(reinterpret_cast<u32*>(shared), a.x_pitch, t, a.x, 2, 2);
    room.fill<T>(a.x, t, Words<T>::LOW);
    wait_for_all();

    u32 item = threadIdx.x / (SLICE / 4), word = threadIdx.x % (SLICE / 4) * 4;
    u32 part = item / a.columns, parts = blockDim.x / (SLICE / 4) / a.columns, each = (a.rows + parts - 1) / parts;
    int x = t.left + int(item - part * a.columns), first = t.top + int(part * each);
    int end = min(first + int(each), t.bottom);
    if (x >= t.right || word >= t.words || part >= parts || first >= end) return;
    // Largest of five of the next row.
    const u32* from = room.pixel(max(first - 2, 0), x - 2) + word;
    auto next = [&]() {
        uint4 v[5];
#pragma unroll
        for (int q = 0; q < 5; q++) v[q] = *reinterpret_cast<const uint4*>(from + q * SLICE);
        from += a.x_pitch * SLICE;
        return largest<T>(v);
    };
    // Row y - 2 + j is in place (k + j) % 5 at row y's turn k; `two` holds it with the row before.
    uint4 low = make_uint4(Words<T>::LOW, Words<T>::LOW, Words<T>::LOW, Words<T>::LOW), one[5], two[5];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        one[j] = first - 2 + j < 0 ? low : next();
        if (j > 0) two[j] = largest<T>(one[j - 1], one[j]);
    }
    u32* to = words_at<T>(a.y, t, first, x) + word;
    u64 step = u64(a.y.w) * a.y.pitch * sizeof(T) / 4;
    for (int y = first; y < end; y += 5) {
#pragma unroll
        for (int k = 0; k < 5; k++) {
            if (y + k >= end) break;
            int now = (k + 4) % 5;
            one[now] = next();
            two[now] = largest<T>(one[(k + 3) % 5], one[now]);
            *reinterpret_cast<uint4*>(to) = largest<T>(largest<T>(two[now], two[(k + 2) % 5]), one[k]);
            to += step;
        }
    }
}

// Moves `d` to `sum` where a value equals the largest: what is left of `d` is zero there.
__device__ __forceinline__ void move_equal(float value, float largest, float& sum, float& d) {
    asm("{\n"
        ".reg .pred p;\n"
        "setp.eq.f32 p, %2, %3;\n"
        "@p add.f32 %0, %0, %1;\n"
        "@p mov.f32 %1, 0f00000000;\n"
        "}"
        : "+f"(sum), "+f"(d)
        : "f"(value), "f"(largest));
}
// The same for both values of a word.
#define MOVE_EQUAL_2(TYPE) \
    asm("{\n" \
        ".reg .pred p, q;\n" \
        "setp.eq." TYPE " p|q, %4, %5;\n" \
        "@p add.f32 %0, %0, %2;\n" \
        "@q add.f32 %1, %1, %3;\n" \
        "@p mov.f32 %2, 0f00000000;\n" \
        "@q mov.f32 %3, 0f00000000;\n" \
        "}" \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(d[0]), "+f"(d[1]) \
        : "r"(value), "r"(largest))
__device__ __forceinline__ void move_equal(fp16, u32 value, u32 largest, float* sum, float* d) {
    MOVE_EQUAL_2("f16x2");
}
__device__ __forceinline__ void move_equal(bf16, u32 value, u32 largest, float* sum, float* d) {
#if __CUDA_ARCH__ >= 900
    MOVE_EQUAL_2("bf16x2");
#else
    float v[2], most[2];
    halves(bf16{}, value, v[0], v[1]);
    halves(bf16{}, largest, most[0], most[1]);
    move_equal(v[0], most[0], sum[0], d[0]);
    move_equal(v[1], most[1], sum[1], d[1]);
#endif
}
__device__ __forceinline__ void move_equal(float, u32 value, u32 largest, float* sum, float* d) {
    move_equal(__uint_as_float(value), __uint_as_float(largest), sum[0], d[0]);
}

// Walks along a line of `count` windows of five values each and gives each window's term to the first of its values that
// is the largest. `value()` is two words of the next value, the first two of which are left out where there are `none`
// before the first window; `term(d)` sets the next window's terms, and `done(turn, sum)` is called for each value from
// the first window's first to the last window's middle, with what it has got; turns count from 0 to 4. Returns the
// smallest of the maxima. Right where there is no NaN, and each window has a value above minus infinity.
template <typename T, typename Value, typename Term, typename Done>
__device__ __forceinline__ uint2 walk(int count, int none, Value value, Term term, Done done) {
    using W = Words<T>;
    constexpr u32 N = 2 * W::COUNT;
    // Value j of window i is in place (i + j) % 5.
    uint2 v[5], least = make_uint2(W::HIGH, W::HIGH);
    float sum[5][N];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[j] = j < none ? make_uint2(W::LOW, W::LOW) : value();
#pragma unroll
        for (u32 l = 0; l < N; l++) sum[j][l] = 0.0f;
    }
    // Turns without windows finish the last values.
    for (int i = 0; i < count + 2; i += 5) {
#pragma unroll
        for (int k = 0; k < 5; k++) {
            if (i + k < count) {
                v[(k + 4) % 5] = value();
                uint2 most = largest<T>(v);
                least = make_uint2(W::smallest(least.x, most.x), W::smallest(least.y, most.y));
                float d[N];
                term(d);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float(&to)[N] = sum[(k + j) % 5];
                    move_equal(T{}, v[(k + j) % 5].x, most.x, to, d);
                    move_equal(T{}, v[(k + j) % 5].y, most.y, to + N / 2, d + N / 2);
                }
#pragma unroll
                for (u32 l = 0; l < N; l++) sum[(k + 4) % 5][l] = d[l];
            }
            done(k, sum[k]);
        }
    }
    return least;
}

// Adds the gradient of two words of a pixel, window by window as max_pool.cu has it.
template <typename T, int N>
__device__ __forceinline__ void add_slowly(const Pool5Args& a, const Tile& t, int y, int x, u32 word, float (&sum)[N]) {
    int h = int(a.x.h), w = int(a.x.w);
    auto words = [&](const View& v, int r, int q) {
        return *reinterpret_cast<const uint2*>(words_at<T>(v, t, r, q) + word);
    };
#pragma unroll 1
    for (int i = max(y - 2, 0); i < min(y + 3, h); i++)
#pragma unroll 1
        for (int j = max(x - 2, 0); j < min(x + 3, w); j++) {
            int top = max(i - 2, 0), left = max(j - 2, 0), place[N];
            float best[N], d[N];
            for (int l = 0; l < N; l++) {
                best[l] = __uint_as_float(0xFF800000u);
                place[l] = top * w + left;
            }
#pragma unroll 1
            for (int r = top; r < min(i + 3, h); r++)
#pragma unroll 1
                for (int q = left; q < min(j + 3, w); q++) {
                    float v[N];
                    values<T>(words(a.x, r, q), v);
                    for (int l = 0; l < N; l++) {
                        bool better = v[l] > best[l] || v[l] != v[l];
                        best[l] = better ? v[l] : best[l];
                        place[l] = better ? r * w + q : place[l];
                    }
                }
            values<T>(words(a.y, i, j), d);
            for (int l = 0; l < N; l++) sum[l] += place[l] == y * w + x ? d[l] : 0.0f;
        }
}

template <typename T> __device__ __forceinline__ void max_pool_5_grad(const Pool5Args& a) {
    constexpr u32 N = 2 * Words<T>::COUNT, THREADS = GRAD_SLICE / 2; // of a pixel
    extern __shared__ uint4 shared[];
    Tile t = tile_of<T, GRAD_SLICE>(a);
    Room<GRAD_SLICE> xs(reinterpret_cast<u32*>(shared), a.x_pitch, t, a.x, 4, 2);
    xs.fill<T>(a.x, t, Words<T>::LOW);
    // Sums of rows replace dy, each where its thread has read dy; those of a thread's second word lie behind.
    Room<GRAD_SLICE> sums(xs.words + a.x_size * GRAD_SLICE, a.dy_pitch, t, a.y, 2, 0);
    sums.fill<T>(a.y, t, 0);
    u32 second = a.dy_size * GRAD_SLICE;
    wait_for_all();

    // Down the columns.
    u32 word = threadIdx.x % THREADS * 2, item = threadIdx.x / THREADS;
    int x = sums.left + int(item), y = t.top + int(item);
    bool odd = false;
    if (x < sums.right && word < t.words) {
        const u32* from = xs.pixel(xs.top, x - 2) + word;
        const u32* dy = sums.pixel(sums.top, x) + word;
        u32* to = sums.pixel(t.top, x) + word;
        u32 x_step = a.x_pitch * GRAD_SLICE, step = a.dy_pitch * GRAD_SLICE;
        int wait = t.top - (sums.top - 2), rows = wait + t.bottom - t.top, turn = 0;
        auto value = [&]() {
            uint2 v[5];
#pragma unroll
            for (int q = 0; q < 5; q++) v[q] = *reinterpret_cast<const uint2*>(from + q * GRAD_SLICE);
            from += x_step;
            return largest<T>(v);
        };
        auto term = [&](float (&d)[N]) {
            values<T>(*reinterpret_cast<const uint2*>(dy), d);
            dy += step;
        };
        auto done = [&](int, float (&sum)[N]) {
            if (turn >= wait && turn < rows) {
                *reinterpret_cast<float2*>(to) = make_float2(sum[0], sum[1]);
                if constexpr (N == 4) *reinterpret_cast<float2*>(to + second) = make_float2(sum[N - 2], sum[N - 1]);
                to += step;
            }
            turn++;
        };
        float least[N];
        values<T>(walk<T>(sums.bottom - sums.top, max(2 - sums.top, 0), value, term, done), least);
#pragma unroll
        for (u32 l = 0; l < N; l++) odd |= !(least[l] > __uint_as_float(0xFF800000u));
    }
    odd = __syncthreads_or(odd);
    if (word >= t.words || y >= t.bottom) return;

    // Along the rows.
    u64 row = reinterpret_cast<u64>(words_at<T>(a.dx, t, y, 0) + word);
    u32 step = a.dx.pitch * sizeof(T);
    auto dx = [&](int i) { return reinterpret_cast<uint2*>(row + u64(u32(i)) * step); };
    if (odd) {
#pragma unroll 1
        for (int q = t.left; q < t.right; q++) {
            float sum[N] = {};
            if (a.accumulate) values<T>(*dx(q), sum);
            add_slowly<T>(a, t, y, q, word, sum);
            *dx(q) = words_of<T>(sum);
        }
        return;
    }
    const u32* from = xs.pixel(y, max(xs.left, 0)) + word;
    const u32* line = sums.pixel(y, sums.left) + word;
    u32 columns = t.right - t.left, added = a.accumulate ? columns : 0;
    int at = sums.left - 2;
    auto value = [&]() {
        uint2 v = *reinterpret_cast<const uint2*>(from);
        from += GRAD_SLICE;
        return v;
    };
    auto term = [&](float (&d)[N]) {
        float2 first = *reinterpret_cast<const float2*>(line);
        d[0] = first.x;
        d[1] = first.y;
        if constexpr (N == 4) {
            float2 other = *reinterpret_cast<const float2*>(line + second);
            d[N - 2] = other.x;
            d[N - 1] = other.y;
        }
        line += GRAD_SLICE;
    };
    // What is added to comes five turns ahead.
    uint2 old[5];
    auto fetch = [&](int i, int turn) { old[turn] = u32(i - t.left) < added ? *dx(i) : make_uint2(0, 0); };
#pragma unroll
    for (int k = 0; k < 5; k++) fetch(at + k, k);
    auto done = [&](int turn, float (&sum)[N]) {
        if (added > 0) {
            float before[N];
            values<T>(old[turn], before);
#pragma unroll
            for (u32 l = 0; l < N; l++) sum[l] += before[l];
            fetch(at + 5, turn);
        }
        if (u32(at - t.left) < columns) *dx(at) = words_of<T>(sum);
        at++;
    };
    walk<T>(sums.right - sums.left, max(2 - sums.left, 0), value, term, done);
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) max_pool_5_##S(Pool5Args a) { max_pool_5<T>(a); } \
    extern "C" __global__ void __launch_bounds__(128, 5) max_pool_5_grad_##S(Pool5Args a) { max_pool_5_grad<T>(a); }
EACH_TYPE(DEFINE)
