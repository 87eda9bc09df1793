// Windows of pools. Comes after tiles.cuh.

struct Window {
    u32 kernel, stride, pad;
};

// Rows or columns of window i that lie in the picture: first, and one past the last.
__device__ __forceinline__ void range(const Window& w, u32 i, u32 extent, u32& first, u32& end) {
    u32 start = i * w.stride;
    first = start > w.pad ? start - w.pad : 0;
    end = start + w.kernel > w.pad ? start + w.kernel - w.pad : 0;
    end = end < extent ? end : extent;
}
// Windows that hold row or column i: first, and one past the last.
__device__ __forceinline__ void holders(const Window& w, u32 i, u32 windows, u32& first, u32& end) {
    u32 from = i + w.pad;
    first = from + 1 > w.kernel ? (from + w.stride - w.kernel) / w.stride : 0;
    end = from / w.stride + 1;
    end = end < windows ? end : windows;
}
// The pixels of a window of x, and the windows of y that hold a pixel.
__device__ __forceinline__ Rectangle pixels_in(const Window& w, const Pixel& window, const View& x) {
    Rectangle r;
    range(w, window.y, x.h, r.top, r.bottom);
    range(w, window.x, x.w, r.left, r.right);
    return r;
}
__device__ __forceinline__ Rectangle windows_at(const Window& w, const Pixel& pixel, const View& y) {
    Rectangle r;
    holders(w, pixel.y, y.h, r.top, r.bottom);
    holders(w, pixel.x, y.w, r.left, r.right);
    return r;
}
