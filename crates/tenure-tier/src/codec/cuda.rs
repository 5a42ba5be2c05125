//! The same encodings by CUDA kernels, for tensors on a device.
//!
//! Encoding takes three kernels. The first measures each block. The second turns lengths into ends and decides whether
//! the tensor stays as it is. The third writes the stream. Decoding takes one kernel. The result is a status in device
//! memory, to be read when the stream has passed.

use std::ffi::c_void;

use tenure_alloc::Address;
use tenure_core::{DType, StreamId};
use tenure_device::cuda::{CudaDriver, KernelError, KernelName, LaunchConfig};
use tenure_device::sim::{KernelMemory, SimDriver, SimKernel};
use tenure_device::{Driver, Executor};

use super::span::{CodecFunctions, UNIT};
use super::stream::{HEADER, MAX_BYTES, table_bytes};
use super::{BLOCK, Codec, CodecError, Encoded, decode as decode_here, encode as encode_here};

const SOURCE: &str = include_str!("source/codec.cu");

/// The bytes of a status.
pub const STATUS_BYTES: usize = 16;

/// The device addresses and sizes of a tensor and its encoded stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecBuffers {
    /// The codec.
    pub codec: Codec,
    /// The dtype of the elements, which are contiguous.
    pub dtype: DType,
    /// The address of the tensor, a multiple of an element's bytes.
    pub raw: Address,
    /// The bytes of the tensor.
    pub raw_bytes: usize,
    /// The address of the encoded stream, a multiple of 16.
    pub stream: Address,
    /// The bytes of memory for the encoded stream: [`max_bytes`](super::max_bytes) are always enough. For decoding, at
    /// least the stream's length.
    pub stream_bytes: usize,
    /// The address of [`STATUS_BYTES`] of memory, a multiple of 8.
    pub status: Address,
}

/// The reason why no kernel was launched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecLaunchError {
    /// An address is not aligned.
    #[error("a kernel cannot reach {what} at {address:#x}: it must be a multiple of {alignment}")]
    Alignment {
        /// The misaligned item: the tensor, the stream or the status.
        what: &'static str,
        /// The address.
        address: Address,
        /// The required alignment in bytes.
        alignment: usize,
    },
    /// The table of blocks does not fit into the stream's memory.
    #[error("{given} bytes are too few for any stream of {raw_bytes}: `max_bytes` says how many are enough")]
    Room {
        /// Bytes of the tensor.
        raw_bytes: usize,
        /// Bytes for the stream.
        given: usize,
    },
    /// The tensor has more blocks than a table can have.
    #[error("a tensor of {raw_bytes} bytes is encoded in parts, of at most {} each", MAX_BYTES)]
    TooLarge {
        /// The bytes of the tensor.
        raw_bytes: usize,
    },
    /// There is no kernel, or the driver returned an error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Returns how a tensor was encoded, from its status, read after the stream has passed.
///
/// # Errors
/// [`CodecError::Room`]: nothing of the stream was written.
pub fn encoded(buffers: &CodecBuffers, status: [u8; STATUS_BYTES]) -> Result<Encoded, CodecError> {
    let (bytes, state) = words(status);
    let codec = if state == RAW { Codec::None } else { buffers.kernels_codec() };
    let bytes = bytes as usize;
    match state {
        OVERFLOW => Err(CodecError::Room { bytes, given: buffers.stream_bytes }),
        _ => Ok(Encoded { codec, raw_bytes: buffers.raw_bytes, bytes }),
    }
}

/// Checks that a tensor was decoded, from its status, read after the stream has passed.
///
/// # Errors
/// [`CodecError::Changed`]: the tensor's contents are unspecified.
pub fn decoded(status: [u8; STATUS_BYTES]) -> Result<(), CodecError> {
    if words(status).1 == CHANGED { Err(CodecError::Changed) } else { Ok(()) }
}

/// The second word of a status. The values are those of the kernels' source.
const ENCODED: u64 = 0;
const RAW: u64 = 1;
const OVERFLOW: u64 = 2;
const CHANGED: u64 = 3;

fn words(status: [u8; STATUS_BYTES]) -> (u64, u64) {
    let both = u128::from_le_bytes(status);
    (both as u64, (both >> 64) as u64)
}

fn status(bytes: usize, state: u64) -> [u8; STATUS_BYTES] {
    (u128::from(state) << 64 | bytes as u128).to_le_bytes()
}

/// Launches the encoding of a tensor on a stream of the device, without waiting. After the stream has passed,
/// [`encoded`] reads the status.
///
/// # Errors
/// [`CodecLaunchError`].
///
/// # Safety
/// The memory at the addresses in `buffers` must stay valid until the stream has passed, and nothing else may touch it
/// out of order.
pub unsafe fn encode(driver: &dyn Driver, on: StreamId, buffers: &CodecBuffers) -> Result<(), CodecLaunchError> {
    buffers.check()?;
    match driver.executor() {
        Executor::Sim(sim) => buffers.simulate_encode(sim, on),
        Executor::Cuda(driver) => {
            for pass in [Pass::Measure, Pass::Offsets, Pass::Write] {
                // SAFETY: the caller's promise.
                unsafe { buffers.launch(driver, on, pass)? };
            }
            Ok(())
        }
    }
}

/// Launches the decoding of a tensor on a stream of the device, without waiting. After the stream has passed,
/// [`decoded`] reads the status. `codec` and `dtype` must be those that the tensor was encoded with.
///
/// # Errors
/// [`CodecLaunchError`].
///
/// # Safety
/// As for [`encode`].
pub unsafe fn decode(driver: &dyn Driver, on: StreamId, buffers: &CodecBuffers) -> Result<(), CodecLaunchError> {
    buffers.check()?;
    driver.memset(buffers.status, 0, STATUS_BYTES as u64, on).map_err(KernelError::Driver)?;
    match driver.executor() {
        Executor::Sim(sim) => buffers.simulate_decode(sim, on),
        // SAFETY: the caller's promise.
        Executor::Cuda(driver) => unsafe { buffers.launch(driver, on, Pass::Read) },
    }
}

/// A kernel of the source file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Measure,
    Offsets,
    Write,
    Read,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Self::Measure => "codec_measure",
            Self::Offsets => "codec_offsets",
            Self::Write => "codec_write",
            Self::Read => "codec_read",
        }
    }
}

/// Returns the name and the source of a kernel.
fn kernel(pass: Pass, codec: Codec, width: usize) -> (KernelName, impl FnOnce() -> String) {
    // One offsets kernel serves all codecs and widths.
    let (codec, width) = if pass == Pass::Offsets { (Codec::None, 1) } else { (codec, width) };
    let variant = (codec as u64) << 8 | width as u64;
    (KernelName { op: pass.name(), variant }, move || {
        let pass = pass.name().trim_start_matches("codec_").to_uppercase();
        format!("#define {pass} 1\n#define CODEC {}\n#define WIDTH {width}\n{SOURCE}", codec as u8)
    })
}

impl CodecBuffers {
    fn check(&self) -> Result<(), CodecLaunchError> {
        let starts = [("a tensor", self.raw, self.dtype.size()), ("its stream", self.stream, UNIT)];
        for (what, address, alignment) in starts.into_iter().chain([("its status", self.status, 8)]) {
            if !address.is_multiple_of(alignment as u64) {
                return Err(CodecLaunchError::Alignment { what, address, alignment });
            }
        }
        if self.raw_bytes > MAX_BYTES {
            return Err(CodecLaunchError::TooLarge { raw_bytes: self.raw_bytes });
        }
        if self.stream_bytes < HEADER + table_bytes(self.blocks()) {
            return Err(CodecLaunchError::Room { raw_bytes: self.raw_bytes, given: self.stream_bytes });
        }
        Ok(())
    }

    /// Returns the codec that the kernels use: [`Codec::None`] if it is not for the dtype.
    fn kernels_codec(&self) -> Codec {
        CodecFunctions::new(self.codec, self.dtype).map_or(Codec::None, |functions| functions.codec)
    }

    fn blocks(&self) -> usize {
        self.raw_bytes.div_ceil(BLOCK * self.dtype.size())
    }

    /// # Safety
    /// As for [`encode`].
    unsafe fn launch(&self, driver: &CudaDriver, on: StreamId, pass: Pass) -> Result<(), CodecLaunchError> {
        let (grid, threads) = match pass {
            Pass::Offsets => (1, 1024),
            _ if self.raw_bytes == 0 => return Ok(()),
            // The most blocks that there can be fit in a grid.
            _ => (self.blocks() as u32, 256),
        };
        let codec = self.kernels_codec();
        let width = self.dtype.size();
        let (name, source) = kernel(pass, codec, width);
        let function = driver.kernel(name, source)?;
        let config = LaunchConfig { grid: [grid, 1, 1], block: [threads, 1, 1], shared_bytes: 0 };
        let sizes = [self.raw_bytes, self.stream_bytes, self.blocks()].map(|size| size as u64);
        let [raw_bytes, stream_bytes, blocks] = sizes;
        let mut words: [u64; 8] =
            [self.raw, raw_bytes, self.stream, stream_bytes, self.status, blocks, codec as u64, width as u64];
        let words: *mut c_void = words.as_mut_ptr().cast();
        // SAFETY: the kernel's parameter is a struct of these words, and the caller guarantees the memory they point
        // to.
        unsafe { driver.launch(function, config, on, &mut [words]) }.map_err(KernelError::Driver)?;
        Ok(())
    }

    fn simulate_encode(self, sim: &SimDriver, on: StreamId) -> Result<(), CodecLaunchError> {
        let kernel = SimKernel::new("codec_encode", on)
            .reads(self.raw, self.raw_bytes as u64)
            .writes(self.stream, self.stream_bytes as u64)
            .writes(self.status, STATUS_BYTES as u64);
        sim.launch(kernel.body(move |memory| {
            let mut raw = vec![0; self.raw_bytes];
            let mut stream = Vec::new();
            memory.read(self.raw, &mut raw);
            let encoded = encode_here(self.codec, self.dtype, &raw, &mut stream);
            let state = match encoded.codec {
                _ if encoded.bytes > self.stream_bytes => OVERFLOW,
                Codec::None => RAW,
                _ => ENCODED,
            };
            if state != OVERFLOW {
                memory.write(self.stream, &stream);
            }
            memory.write(self.status, &status(encoded.bytes, state));
        }))
        .map_err(KernelError::Driver)?;
        Ok(())
    }

    fn simulate_decode(self, sim: &SimDriver, on: StreamId) -> Result<(), CodecLaunchError> {
        let kernel = SimKernel::new("codec_decode", on)
            .reads(self.stream, self.stream_bytes as u64)
            .writes(self.raw, self.raw_bytes as u64)
            .writes(self.status, STATUS_BYTES as u64);
        let body = move |memory: &mut KernelMemory<'_>| {
            let mut stream = vec![0; self.stream_bytes];
            memory.read(self.stream, &mut stream);
            let mut raw = vec![0; self.raw_bytes];
            // There may be room after the stream.
            let mut result = decode_here(&stream, &mut raw);
            if let Err(CodecError::Length { expected, .. }) = result
                && let Some(whole) = stream.get(..expected)
            {
                result = decode_here(whole, &mut raw);
            }
            match result {
                Ok(encoded) if [Codec::None, self.kernels_codec()].contains(&encoded.codec) => {
                    memory.write(self.raw, &raw);
                }
                _ => memory.write(self.status, &status(0, CHANGED)),
            }
        };
        sim.launch(kernel.body(body)).map_err(KernelError::Driver)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_compiles() {
        if std::env::var_os("TENURE_CHECK_KERNELS").is_none() {
            return;
        }
        for (codec, width) in Codec::ALL.into_iter().flat_map(|codec| [1, 2, 4, 8].map(|width| (codec, width))) {
            if codec != Codec::None && CodecFunctions::of_width(codec, width).is_none() {
                continue;
            }
            for pass in [Pass::Measure, Pass::Offsets, Pass::Write, Pass::Read] {
                let (name, source) = kernel(pass, codec, width);
                tenure_device::cuda::compile_cached(name, &source(), (9, 0)).unwrap();
            }
        }
    }
}
