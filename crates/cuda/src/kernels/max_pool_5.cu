// Max pooling with 5x5 windows of stride 1 and padding 2, as max_pool.cu defines it, and its gradient in one pass.
//
// A block copies a tile of a picture with the values around it into shared memory, a slice of its channels, and works
// on 32-bit words there: two halves, or one float. Maxima of rows of five come first, then of five such rows. Of zeros
// of both signs the maximum is +0.
//
// The gradient goes to the first row that has the window's maximum, and in that row to the first column that has the
// row's: the first maximum in row-major order. So it is handed on twice along a line: dy from the windows of a column
// to rows, then those sums from the windows of a row to columns. Sums are float32 in an order of their own, the same on
// every card. A tile with NaN, or where everything in reach of a window is minus infinity, goes the slow way, window by
// window.
//
// The forward pass reads x, writes y: 64x20x20x256 in bf16 is 26 MB, 6.2 us at 4.2 TB/s, the rate of a copy; the
// gradient reads x and dy, writes dx: 39 MB, 9.4 us. Of 64x40x40x512, 210 MB and 315 MB: 50 us and 75 us. Measured on
// an H200, 2026-12-01: 12.7 us and 29.1 us; of the larger one 61 us and 171 us.

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
        int x = left + int(i / FOURS), y = top + int(row);
        // Of the picture, then below it.
        int picture = x >= 0 && x < int(v.w) ? min(bottom, int(v.h)) : top;
        u32* to = pixel(y, x) + word;
        u64 from = reinterpret_cast<u64>(words_at<T>(v, t, y, x) + word);
        u64 step = u64(rows * v.w) * v.pitch * sizeof(T);
#pragma unroll 4
        for (; y < picture; y += int(rows), to += rows * pitch * WORDS, from += step)
            copy_async(reinterpret_cast<uint4*>(to), reinterpret_cast<const void*>(from));
        for (; y < bottom; y += int(rows), to += rows * pitch * WORDS)
            *reinterpret_cast<uint4*>(to) = make_uint4(outside, outside, outside, outside);
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
#define WORDS_OF_HALVES(HALF, TYPE, MINUS_INFINITY, PLUS_INFINITY) \
    template <> struct Words<HALF> { \
        static constexpr u32 COUNT = 2, LOW = MINUS_INFINITY, HIGH = PLUS_INFINITY; \
        static __device__ __forceinline__ u32 largest(u32 a, u32 b) { \
            u32 r; \
            asm("max.NaN." TYPE " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); \
            return r; \
        } \
        static __device__ __forceinline__ u32 smallest(u32 a, u32 b) { \
            u32 r; \
            asm("min.NaN." TYPE " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); \
            return r; \
        } \
    }
WORDS_OF_HALVES(bf16, "bf16x2", 0xFF80FF80u, 0x7F807F80u);
WORDS_OF_HALVES(fp16, "f16x2", 0xFC00FC00u, 0x7C007C00u);
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

// Of two runs of values, the first has a window's first maximum where its own maximum is not below that of the second:
// there it gets what the window has, and nothing of it is left.
__device__ __forceinline__ void hand_on(float first, float second, float& run, float window, float& left) {
    asm("{\n"
        ".reg .pred p;\n"
        "setp.ge.f32 p, %2, %3;\n"
        "@p add.f32 %0, %0, %4;\n"
        "selp.f32 %1, 0f00000000, %4, p;\n"
        "}"
        : "+f"(run), "=&f"(left)
        : "f"(first), "f"(second), "f"(window));
}
// The same for the values of a word.
#define HAND_ON_2(TYPE) \
    asm("{\n" \
        ".reg .pred p, q;\n" \
        "setp.ge." TYPE " p|q, %4, %5;\n" \
        "@p add.f32 %0, %0, %6;\n" \
        "@q add.f32 %1, %1, %7;\n" \
        "selp.f32 %2, 0f00000000, %6, p;\n" \
        "selp.f32 %3, 0f00000000, %7, q;\n" \
        "}" \
        : "+f"(run[0]), "+f"(run[1]), "=&f"(left[0]), "=&f"(left[1]) \
        : "r"(first), "r"(second), "f"(window[0]), "f"(window[1]))
__device__ __forceinline__ void hand_on(fp16, u32 first, u32 second, float* run, const float* window, float* left) {
    HAND_ON_2("f16x2");
}
__device__ __forceinline__ void hand_on(bf16, u32 first, u32 second, float* run, const float* window, float* left) {
#if __CUDA_ARCH__ >= 900
    HAND_ON_2("bf16x2");
#else
    float a[2], b[2];
    halves(bf16{}, first, a[0], a[1]);
    halves(bf16{}, second, b[0], b[1]);
    hand_on(a[0], b[0], run[0], window[0], left[0]);
    hand_on(a[1], b[1], run[1], window[1], left[1]);
#endif
}
__device__ __forceinline__ void hand_on(float, u32 first, u32 second, float* run, const float* window, float* left) {
    hand_on(__uint_as_float(first), __uint_as_float(second), run[0], window[0], left[0]);
}
template <typename T, int N>
__device__ __forceinline__ void hand_on(uint2 first, uint2 second, float (&run)[N], const float (&window)[N],
                                        float (&left)[N]) {
    hand_on(T{}, first.x, second.x, run, window, left);
    hand_on(T{}, first.y, second.y, run + N / 2, window + N / 2, left + N / 2);
}

// Walks along a line of `count` windows of five values each and gives each window's term to the first of its values
// that is the largest. A window hands it to its first or its last three values, these to their first or last two, and
// these to one: always to the first of both if its maximum is not below the other's.
//
// `value()` is two words of the next value; of the four before the first window's last, `none` are not there. `term(d)`
// sets the next window's terms, and `done(turn, sum)` is called for each value from the first window's first to the
// last window's middle, with what it has got; turns count from 0 to 4. Returns the smallest maximum of three. Right
// where there is no NaN, and each window has a value above minus infinity.
template <typename T, typename Value, typename Term, typename Done>
__device__ __forceinline__ uint2 walk(int count, int none, Value value, Term term, Done done) {
    using W = Words<T>;
    constexpr u32 N = 2 * W::COUNT;
    // Value j of window i is in place (i + j) % 5, as are the maximum of it and the next, the maximum of it and its
    // neighbours, and what windows have left for the last three around it, for it and the next, and for it.
    uint2 one[5], two[5], three[5];
    float left3[5][N] = {}, left2[5][N] = {}, left1[5][N] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        one[j] = j < none ? make_uint2(W::LOW, W::LOW) : value();
        if (j > 0) two[j - 1] = largest<T>(one[j - 1], one[j]);
        if (j > 1) three[j - 1] = largest<T>(two[j - 2], two[j - 1]);
    }
    uint2 least = make_uint2(W::smallest(three[1].x, three[2].x), W::smallest(three[1].y, three[2].y));
    auto turn = [&](int k, bool window) {
        int at1 = (k + 1) % 5, at2 = (k + 2) % 5, at3 = (k + 3) % 5, at4 = (k + 4) % 5;
        float d[N];
        if (window) {
            one[at4] = value();
            two[at3] = largest<T>(one[at3], one[at4]);
            three[at3] = largest<T>(two[at2], two[at3]);
            least = make_uint2(W::smallest(least.x, three[at3].x), W::smallest(least.y, three[at3].y));
            term(d);
        } else {
#pragma unroll
            for (u32 l = 0; l < N; l++) d[l] = 0.0f;
        }
        // In turn, what is complete: the sums of three values, of two, and of one.
        hand_on<T>(three[at1], three[at3], left3[at1], d, left3[at3]);
        hand_on<T>(two[k], two[at1], left2[k], left3[at1], left2[at1]);
        hand_on<T>(one[k], one[at1], left1[k], left2[k], left1[at1]);
        done(k, left1[k]);
    };
    int i = 0;
    for (; i + 5 <= count; i += 5) {
#pragma unroll
        for (int k = 0; k < 5; k++) turn(k, true);
    }
    // Two turns without windows finish the last values.
    for (; i < count + 2; i += 5) {
#pragma unroll
        for (int k = 0; k < 5; k++) {
            if (i + k >= count + 2) break;
            turn(k, i + k < count);
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
    i64 step = a.dx.pitch * sizeof(T);
    auto words = [](u64 at) -> uint2& { return *reinterpret_cast<uint2*>(at); };
    if (odd) {
#pragma unroll 1
        for (int q = t.left; q < t.right; q++) {
            float sum[N] = {};
            if (a.accumulate) values<T>(words(row + q * step), sum);
            add_slowly<T>(a, t, y, q, word, sum);
            words(row + q * step) = words_of<T>(sum);
        }
        return;
    }
    const u32* from = xs.pixel(y, max(xs.left, 0)) + word;
    const u32* line = sums.pixel(y, sums.left) + word;
    int columns = t.right - t.left, column = sums.left - 2 - t.left;
    u64 to = row + (column + t.left) * step;
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
    u32 added = a.accumulate ? columns : 0;
#pragma unroll
    for (int k = 0; k < 5; k++) old[k] = u32(column + k) < added ? words(to + k * step) : make_uint2(0, 0);
    auto done = [&](int turn, float (&sum)[N]) {
        if (added > 0) {
            float before[N];
            values<T>(old[turn], before);
#pragma unroll
            for (u32 l = 0; l < N; l++) sum[l] += before[l];
            old[turn] = u32(column + 5) < added ? words(to + 5 * step) : make_uint2(0, 0);
        }
        if (u32(column) < u32(columns)) words(to) = words_of<T>(sum);
        column++;
        to += step;
    };
    walk<T>(sums.right - sums.left, max(2 - sums.left, 0), value, term, done);
}

#define DEFINE(T, S) \
    extern "C" __global__ void __launch_bounds__(256) max_pool_5_##S(Pool5Args a) { max_pool_5<T>(a); } \
    extern "C" __global__ void __launch_bounds__(128, 5) max_pool_5_grad_##S(Pool5Args a) { max_pool_5_grad<T>(a); }
EACH_TYPE(DEFINE)
