//! Copies between the host and rows of memory on the card.

use crate::device::Gpu;
use crate::error::Result;
use cudarc::driver::{result, sys};
use std::ffi::c_void;

/// Rows of equal length, `pitch` bytes from one start to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Address of the first byte on the card.
    pub at: u64,
    pub rows: usize,
    /// Bytes of a row.
    pub width: usize,
    /// At least `width`.
    pub pitch: usize,
}

impl Rows {
    /// Bytes of all rows, without what lies between them.
    pub fn bytes(&self) -> usize {
        self.rows * self.width
    }

    fn is_packed(&self) -> bool {
        self.pitch == self.width || self.rows == 1
    }

    /// Copies the rows to the host, one after the other, once everything that was launched is done.
    ///
    /// # Errors
    /// What the driver says, also of earlier launches.
    ///
    /// # Safety
    /// The rows are memory of the card; `target` holds [`Self::bytes`] bytes.
    pub unsafe fn download(&self, gpu: &Gpu, target: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise; the stream is waited for.
        unsafe { self.start_download(gpu, target) }?;
        gpu.synchronize()
    }

    /// Starts [`Self::download`], in order with the stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As there; `target` is not used before the stream has got so far.
    pub unsafe fn start_download(&self, gpu: &Gpu, target: &mut [u8]) -> Result<()> {
        debug_assert_eq!(target.len(), self.bytes());
        gpu.context().bind_to_thread()?;
        let stream = gpu.stream().cu_stream();
        if self.is_packed() {
            // SAFETY: the caller's promise.
            unsafe { result::memcpy_dtoh_async(target, self.at, stream) }?;
        } else {
            let copy = self.copy(End::Card(self.at, self.pitch), End::Host(target.as_mut_ptr().cast(), self.width));
            // SAFETY: as above.
            unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream) }.result()?;
        }
        Ok(())
    }

    /// Copies packed rows from the host, in order with the stream. Returns when `source` may be changed.
    ///
    /// # Errors
    /// What the driver says, also of earlier launches.
    ///
    /// # Safety
    /// The rows are memory of the card; `source` holds [`Self::bytes`] bytes.
    pub unsafe fn upload(&self, gpu: &Gpu, source: &[u8]) -> Result<()> {
        debug_assert_eq!(source.len(), self.bytes());
        gpu.context().bind_to_thread()?;
        let stream = gpu.stream().cu_stream();
        if self.is_packed() {
            // SAFETY: the caller's promise; the stream is waited for below.
            unsafe { result::memcpy_htod_async(self.at, source, stream) }?;
        } else {
            let source = source.as_ptr().cast_mut().cast();
            let copy = self.copy(End::Host(source, self.width), End::Card(self.at, self.pitch));
            // SAFETY: as above.
            unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream) }.result()?;
        }
        gpu.synchronize()
    }

    /// Copies packed rows that lie on the card at `source`, in order with the stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both are memory of the card and do not overlap.
    pub unsafe fn copy_from(&self, gpu: &Gpu, source: u64) -> Result<()> {
        let copy = self.copy(End::Card(source, self.width), End::Card(self.at, self.pitch));
        let stream = gpu.stream().cu_stream();
        // SAFETY: the caller's promise.
        unsafe {
            match self.is_packed() {
                true => result::memcpy_dtod_async(self.at, source, self.bytes(), stream)?,
                false => sys::cuMemcpy2DAsync_v2(&copy, stream).result()?,
            }
        }
        Ok(())
    }

    /// Sets all bytes of the rows to zero, in order with the stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The rows are memory of the card.
    pub unsafe fn clear(&self, gpu: &Gpu) -> Result<()> {
        let stream = gpu.stream().cu_stream();
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemsetD2D8Async(self.at, self.pitch, 0, self.width, self.rows, stream) }.result()?;
        Ok(())
    }

    /// What the driver takes, for rows of this width.
    fn copy(&self, source: End, target: End) -> sys::CUDA_MEMCPY2D {
        let ((src_type, src_host, src_card, src_pitch), (dst_type, dst_host, dst_card, dst_pitch)) =
            (source.parts(), target.parts());
        sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: src_type,
            srcHost: src_host,
            srcDevice: src_card,
            srcArray: std::ptr::null_mut(),
            srcPitch: src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: dst_type,
            dstHost: dst_host,
            dstDevice: dst_card,
            dstArray: std::ptr::null_mut(),
            dstPitch: dst_pitch,
            WidthInBytes: self.width,
            Height: self.rows,
        }
    }
}

/// One end of a copy: its first byte, and bytes from one row to the next.
#[derive(Clone, Copy)]
enum End {
    Host(*mut c_void, usize),
    Card(u64, usize),
}

impl End {
    fn parts(self) -> (sys::CUmemorytype, *mut c_void, u64, usize) {
        match self {
            Self::Host(at, pitch) => (sys::CUmemorytype::CU_MEMORYTYPE_HOST, at, 0, pitch),
            Self::Card(at, pitch) => (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, std::ptr::null_mut(), at, pitch),
        }
    }
}
