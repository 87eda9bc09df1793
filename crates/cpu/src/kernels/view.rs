//! NHWC tensors as the kernels see them: a base pointer, a shape and a pitch.
//!
//! Views hold raw pointers because a kernel may read one channel range of a buffer and write another: two slices could
//! not overlap like that.

use std::marker::PhantomData;

/// A tensor to read. Element (n, y, x, c) is at `((n*h + y)*w + x)*pitch + c` from the base, c < channels <= pitch.
#[derive(Debug)]
pub struct View<'a, T> {
    pub(crate) ptr: *const T,
    /// Images.
    pub n: usize,
    /// Rows.
    pub h: usize,
    /// Columns.
    pub w: usize,
    /// Channels seen.
    pub channels: usize,
    /// Elements from one pixel to the next.
    pub pitch: usize,
    life: PhantomData<&'a T>,
}

/// A tensor to write; the layout is [`View`]'s.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    pub(crate) ptr: *mut T,
    /// Images.
    pub n: usize,
    /// Rows.
    pub h: usize,
    /// Columns.
    pub w: usize,
    /// Channels seen.
    pub channels: usize,
    /// Elements from one pixel to the next.
    pub pitch: usize,
    life: PhantomData<&'a mut T>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for View<'_, T> {}

// SAFETY: a view is a shared borrow of T's for 'a.
unsafe impl<T: Sync> Send for View<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for View<'_, T> {}
// SAFETY: a mutable view is a unique borrow of its elements for 'a.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
// SAFETY: a shared reference to it only reads its fields; kernels split writes by pixel.
unsafe impl<T: Send + Sync> Sync for ViewMut<'_, T> {}

/// Elements from the base to the end of the last pixel's channels.
fn extent(shape: [usize; 4], pitch: usize) -> usize {
    let pixels = shape[0] * shape[1] * shape[2];
    if pixels == 0 { 0 } else { (pixels - 1) * pitch + shape[3] }
}

impl<'a, T> View<'a, T> {
    /// A view of `[n, h, w, channels]` at the start of a slice. The slice must reach to the last pixel's last channel.
    pub fn new(data: &'a [T], shape: [usize; 4], pitch: usize) -> Self {
        assert!(shape[3] <= pitch && extent(shape, pitch) <= data.len(), "view {shape:?}/{pitch} of {}", data.len());
        // SAFETY: the slice covers the extent for 'a.
        unsafe { Self::from_raw(data.as_ptr(), shape, pitch) }
    }

    /// A view of `[n, h, w, channels]` at a pointer.
    ///
    /// # Safety
    /// For 'a, the channels of every pixel must be readable and written by nobody; the other elements up to the pitch
    /// are never touched.
    pub unsafe fn from_raw(ptr: *const T, shape: [usize; 4], pitch: usize) -> Self {
        assert!(shape[3] <= pitch);
        let [n, h, w, channels] = shape;
        Self { ptr, n, h, w, channels, pitch, life: PhantomData }
    }

    /// The channels `first .. first + count` of this view.
    pub fn channel_range(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.channels);
        // SAFETY: inside this view's channels.
        unsafe { Self::from_raw(self.ptr.add(first), [self.n, self.h, self.w, count], self.pitch) }
    }

    /// Where a pixel's channels start; pixels are counted over all images.
    ///
    /// # Safety
    /// `pixel` must be below [`View::pixels`].
    #[inline(always)]
    pub(crate) unsafe fn at(&self, pixel: usize) -> *const T {
        self.ptr.add(pixel * self.pitch)
    }

    /// n * h * w.
    pub fn pixels(&self) -> usize {
        self.n * self.h * self.w
    }

    /// `[n, h, w, channels]`.
    pub fn shape(&self) -> [usize; 4] {
        [self.n, self.h, self.w, self.channels]
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// A view of `[n, h, w, channels]` at the start of a slice. The slice must reach to the last pixel's last channel.
    pub fn new(data: &'a mut [T], shape: [usize; 4], pitch: usize) -> Self {
        assert!(shape[3] <= pitch && extent(shape, pitch) <= data.len(), "view {shape:?}/{pitch} of {}", data.len());
        // SAFETY: the slice covers the extent for 'a, uniquely.
        unsafe { Self::from_raw(data.as_mut_ptr(), shape, pitch) }
    }

    /// A view of `[n, h, w, channels]` at a pointer.
    ///
    /// # Safety
    /// For 'a, the channels of every pixel must be readable and writable through this view only; the other elements up
    /// to the pitch are never touched.
    pub unsafe fn from_raw(ptr: *mut T, shape: [usize; 4], pitch: usize) -> Self {
        assert!(shape[3] <= pitch);
        let [n, h, w, channels] = shape;
        Self { ptr, n, h, w, channels, pitch, life: PhantomData }
    }

    /// The channels `first .. first + count` of this view.
    pub fn channel_range(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.channels);
        // SAFETY: inside this view's channels.
        unsafe { Self::from_raw(self.ptr.add(first), [self.n, self.h, self.w, count], self.pitch) }
    }

    /// The same tensor, to read, while this view is borrowed.
    pub fn as_view(&self) -> View<'_, T> {
        // SAFETY: the borrow of self keeps writers away.
        unsafe { View::from_raw(self.ptr, self.shape(), self.pitch) }
    }

    /// The same tensor for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        // SAFETY: the borrow of self keeps other users away.
        unsafe { ViewMut::from_raw(self.ptr, self.shape(), self.pitch) }
    }

    /// n * h * w.
    pub fn pixels(&self) -> usize {
        self.n * self.h * self.w
    }

    /// `[n, h, w, channels]`.
    pub fn shape(&self) -> [usize; 4] {
        [self.n, self.h, self.w, self.channels]
    }
}
