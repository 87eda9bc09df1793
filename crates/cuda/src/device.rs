//! A card: its context, the stream that everything runs on, and memory on it.

use crate::error::{CudaError, Result};
use crate::libraries::{Library, load};
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUevent_flags};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};
use std::sync::Arc;

/// What a card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// As the driver names it, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability.
    pub major: u32,
    pub minor: u32,
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the second-level cache.
    pub l2: u64,
    /// Bytes of shared memory that one block may have.
    pub shared_per_block: u32,
}

impl Properties {
    /// True where tensor cores take bf16.
    pub fn has_bf16(&self) -> bool {
        self.major >= 8
    }
}

/// An open card.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    properties: Properties,
}

impl Gpu {
    /// Cards that the driver shows; 0 where there is no driver.
    pub fn count() -> usize {
        if load(Library::Driver).is_err() {
            return 0;
        }
        CudaContext::device_count().map_or(0, |n| usize::try_from(n).unwrap_or(0))
    }

    /// Opens a card by its number.
    ///
    /// # Errors
    /// No driver, no such card, or what the driver says.
    pub fn open(ordinal: usize) -> Result<Self> {
        load(Library::Driver)?;
        let count = Self::count();
        if ordinal >= count {
            return Err(CudaError::NoCard { ordinal, count });
        }
        let context = CudaContext::new(ordinal)?;
        // Lifetimes come from the plan, not from events on each buffer.
        // SAFETY: this crate orders its work on one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let attribute = |name| context.attribute(name).map(|v| u32::try_from(v).unwrap_or(0));
        let properties = Properties {
            name: context.name()?,
            major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory: context.total_mem()? as u64,
            l2: u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        };
        Ok(Self { context, stream, properties })
    }

    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The card's place on the PCI bus, such as `0000:1b:00.0`: the same in every library, whatever `CUDA_VISIBLE_DEVICES`
    /// says.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pci_bus_id(&self) -> Result<String> {
        // The longest is `00000000:00:00.0` with its end.
        let mut text = [0u8; 32];
        let (room, device) = (text.len() as i32, self.context.cu_device());
        // SAFETY: the driver writes a text with its end, into `room` bytes at most, which are there.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), room, device) }.result()?;
        Ok(text.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect())
    }

    /// Free and total bytes of memory, as the driver counts them.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (free, total) = self.context.mem_get_info()?;
        Ok((free as u64, total as u64))
    }

    /// An event that orders work and does not time it.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn event(&self) -> Result<CudaEvent> {
        Ok(self.context.new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))?)
    }

    /// An event whose time can be read.
    pub(crate) fn timing_event(&self) -> Result<CudaEvent> {
        Ok(self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// What went wrong in a launch since.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    /// Memory of so many bytes, zeroed.
    ///
    /// # Errors
    /// [`CudaError::Memory`] where the card has less free.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        self.context.bind_to_thread()?;
        // SAFETY: a size above zero; freed by the buffer.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(|source| match self.memory() {
            Ok((free, _)) => CudaError::Memory { bytes: bytes as u64, free },
            Err(_) => CudaError::Driver(source),
        })?;
        let buffer = Buffer { gpu: self.clone(), address, bytes };
        // SAFETY: the whole of memory that was just allocated.
        unsafe { result::memset_d8_async(address, 0, bytes.max(1), self.stream.cu_stream()) }?;
        Ok(buffer)
    }
}

/// Memory on a card, freed when dropped. Aligned to 256 bytes.
#[derive(Debug)]
pub struct Buffer {
    gpu: Gpu,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Address of the first byte on the card.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies values to `offset` bytes from the start, in order with the stream. Returns when `values` may be changed.
    ///
    /// # Errors
    /// [`CudaError::Range`] beyond the end; what the driver says.
    pub fn write<T: bytemuck::Pod>(&mut self, offset: usize, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.context.bind_to_thread()?;
        // SAFETY: the range lies in the buffer; the call returns once pageable host memory has been read.
        unsafe { result::memcpy_htod_async(self.address + offset as u64, bytes, self.gpu.stream.cu_stream()) }?;
        self.gpu.synchronize()
    }

    /// Copies `count` values from `offset` bytes from the start, after everything that was launched.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read<T: bytemuck::Pod>(&self, offset: usize, count: usize) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(values);
        }
        self.gpu.context.bind_to_thread()?;
        // SAFETY: the range lies in the buffer, and the host memory stays until the stream has been waited for.
        unsafe { result::memcpy_dtoh_async(bytes, self.address + offset as u64, self.gpu.stream.cu_stream()) }?;
        self.gpu.synchronize()?;
        Ok(values)
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(CudaError::Range { offset, bytes, have: self.bytes }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Nothing can be done about a failure.
        let _ = self.gpu.context.bind_to_thread();
        // SAFETY: allocated by this buffer and freed once; the driver waits for launches that use it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}
