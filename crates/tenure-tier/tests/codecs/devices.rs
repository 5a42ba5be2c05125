//! Tests that devices encode and decode as the host does: on simulated devices, and on the first NVIDIA device if there
//! is one. The environment variable `TENURE_TEST_DRIVER` (`sim`, `cuda`, `all`) chooses among them; `cuda` requires an
//! NVIDIA device.

use std::env;
use std::fs::File;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use tenure_alloc::Address;
use tenure_core::{DType, StreamId};
use tenure_device::cuda::{self, KernelError};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{Driver, ErrorKind, Executor, Platform, Priority};
use tenure_tier::codec::cuda::{CodecBuffers, CodecLaunchError, STATUS_BYTES, decode, decoded, encode, encoded};
use tenure_tier::codec::{self, BLOCK, Codec, CodecError, Encoded, StreamWriter, max_bytes, sequential};

use crate::tensor;

pub(crate) const KERNELS: [(Codec, usize); 12] = [
    (Codec::None, 1),
    (Codec::None, 2),
    (Codec::None, 4),
    (Codec::None, 8),
    (Codec::Zeros, 1),
    (Codec::Zeros, 2),
    (Codec::Zeros, 4),
    (Codec::Zeros, 8),
    (Codec::Planes, 2),
    (Codec::Planes, 4),
    (Codec::Fp16, 4),
    (Codec::CsrFp16, 4),
];

fn of_width(bytes: usize) -> DType {
    [DType::U8, DType::BF16, DType::F32, DType::F64][bytes.trailing_zeros() as usize]
}

/// Returns the devices to test on, each with the lock that keeps other tests off a real one while it is held.
pub(crate) fn drivers() -> Vec<(Arc<dyn Driver>, Option<File>)> {
    let chosen = env::var("TENURE_TEST_DRIVER").unwrap_or_else(|_| "all".to_owned());
    let seeds = if chosen == "cuda" { 0..0 } else { 0..2 };
    let mut drivers: Vec<(Arc<dyn Driver>, _)> = Vec::new();
    for seed in seeds {
        drivers.push((Arc::new(SimDriver::new(SimConfig { seed, ..SimConfig::default() })), None));
    }
    if chosen == "cuda" || chosen == "all" && cuda::platform().device_count().is_ok() {
        let alone = File::create(env::temp_dir().join("tenure-cuda-tests.lock")).unwrap();
        alone.lock().unwrap();
        drivers.push((cuda::platform().driver(0).unwrap(), Some(alone)));
    }
    drivers
}

/// A tensor on a device.
pub(crate) struct Placed<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) stream: StreamId,
    pub(crate) buffers: CodecBuffers,
}

impl<'a> Placed<'a> {
    pub(crate) fn new(driver: &'a dyn Driver, codec: Codec, dtype: DType, raw: &[u8], stream_bytes: usize) -> Self {
        let allocate = |bytes: usize| driver.malloc(bytes.max(1) as u64).unwrap();
        let stream = driver.create_stream(Priority::Default).unwrap();
        let start = allocate(raw.len());
        let to = allocate(stream_bytes);
        driver.copy_to_device(start, raw, stream).unwrap();
        let buffers = CodecBuffers {
            codec,
            dtype,
            raw: start,
            raw_bytes: raw.len(),
            stream: to,
            stream_bytes,
            status: allocate(STATUS_BYTES),
        };
        Self { driver, stream, buffers }
    }

    fn read(&self, address: Address, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.driver.copy_from_device(&mut read, address, self.stream).unwrap();
        read
    }

    fn status(&self) -> [u8; STATUS_BYTES] {
        self.read(self.buffers.status, STATUS_BYTES).try_into().unwrap()
    }

    pub(crate) fn encode(&self) -> Result<Encoded, CodecError> {
        // SAFETY: the test owns the memory until the end.
        unsafe { encode(self.driver, self.stream, &self.buffers).unwrap() };
        encoded(&self.buffers, self.status())
    }

    pub(crate) fn decode(&self, stream: &[u8]) -> Result<Vec<u8>, CodecError> {
        self.driver.memset(self.buffers.raw, 0xee, self.buffers.raw_bytes as u64, self.stream).unwrap();
        self.driver.copy_to_device(self.buffers.stream, stream, self.stream).unwrap();
        // SAFETY: as above.
        unsafe { decode(self.driver, self.stream, &self.buffers).unwrap() };
        decoded(self.status())?;
        Ok(self.read(self.buffers.raw, self.buffers.raw_bytes))
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        for address in [self.buffers.raw, self.buffers.stream, self.buffers.status] {
            self.driver.free(address).unwrap();
        }
        self.driver.destroy_stream(self.stream).unwrap();
    }
}

/// Encodes and decodes on a device, and compares with the host.
fn check(driver: &dyn Driver, codec: Codec, dtype: DType, raw: &[u8]) {
    let mut here = Vec::new();
    let mut back = vec![0; raw.len()];
    let expected = codec::encode(codec, dtype, raw, &mut here);
    codec::decode(&here, &mut back).unwrap();
    let placed = Placed::new(driver, codec, dtype, raw, max_bytes(dtype, raw.len()));
    assert_eq!(placed.encode(), Ok(expected));
    let there = placed.read(placed.buffers.stream, expected.bytes);
    assert!(there == here, "{codec} of {dtype}: the device encodes otherwise");
    assert!(placed.decode(&here).unwrap() == back, "{codec} of {dtype}: the device decodes otherwise");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_device_encodes_and_decodes_as_the_host(
        codec in 0..Codec::ALL.len(), dtype in 0..DType::ALL.len(), kind in 0..6_usize, count in 0..9000_usize,
        cut in 0..8_usize, seed: u64,
    ) {
        let codec = Codec::ALL[codec];
        let dtype = DType::ALL[dtype];
        let mut raw = tensor(dtype, kind, count, seed);
        raw.truncate(raw.len().saturating_sub(cut));
        for (driver, _alone) in drivers() {
            check(&*driver, codec, dtype, &raw);
        }
    }

    #[test]
    fn a_device_finds_changes_as_the_host(
        kernel in 0..KERNELS.len(), kind in 0..6_usize, count in 1..3000_usize, at: usize, bit in 0..8_u32, seed: u64,
    ) {
        let (codec, width) = KERNELS[kernel];
        let dtype = of_width(width);
        let raw = tensor(dtype, kind, count, seed);
        let mut stream = Vec::new();
        codec::encode(codec, dtype, &raw, &mut stream);
        let places = [at % stream.len(), at % stream.len().min(40)];
        // The table needs room even where a shorter tensor stays as it is.
        let room = if raw.len() < 64 { codec::max_bytes(dtype, raw.len()) } else { stream.len() };
        for place in places {
            stream[place] ^= 1 << bit;
            let mut back = vec![0; raw.len()];
            let here = codec::decode(&stream, &mut back);
            for (driver, _alone) in drivers() {
                let placed = Placed::new(&*driver, codec, dtype, &raw, room);
                match (placed.decode(&stream), here) {
                    // A stream of another codec needs another kernel.
                    (Ok(there), Ok(_)) => prop_assert!(there == back),
                    (Err(error), _) => prop_assert_eq!(error, CodecError::Changed),
                    // The stream is longer than it says: the device only knows how much room there is.
                    (Ok(_), here) => prop_assert!(matches!(here, Err(CodecError::Length { .. })), "{:?}", here),
                }
            }
        }
    }
}

#[test]
fn tensors_of_no_bytes_are_the_same_on_a_device() {
    for (driver, _alone) in drivers() {
        for (codec, width) in KERNELS {
            let dtype = of_width(width);
            check(&*driver, codec, dtype, &[]);
        }
    }
}

#[test]
fn tensors_of_many_blocks_are_the_same_on_a_device() {
    for (driver, _alone) in drivers() {
        for (codec, width) in KERNELS {
            let dtype = of_width(width);
            check(&*driver, codec, dtype, &tensor(dtype, 5, 300_001, 7));
        }
        // These are more blocks than the offsets kernel handles at once. The simulated device has no such kernel.
        if matches!(driver.executor(), Executor::Cuda(_)) {
            check(&*driver, Codec::Zeros, DType::U8, &tensor(DType::U8, 5, 17_000 * BLOCK + 5, 7));
        }
    }
}

#[test]
fn a_stream_that_does_not_fit_is_told_and_nothing_is_written_beyond() {
    let raw = tensor(DType::F32, 2, 5000, 1);
    let needed = StreamWriter::new(Codec::Planes, DType::F32, &raw, &sequential).encoded().bytes;
    for (driver, _alone) in drivers() {
        let mut placed = Placed::new(&*driver, Codec::Planes, DType::F32, &raw, needed);
        driver.memset(placed.buffers.stream, 0xcd, needed as u64, placed.stream).unwrap();
        placed.buffers.stream_bytes = needed - 1;
        assert_eq!(placed.encode(), Err(CodecError::Room { bytes: needed, given: needed - 1 }));
        assert_eq!(placed.read(placed.buffers.stream, needed)[needed - 1], 0xcd);
        placed.buffers.stream_bytes = needed;
        assert_eq!(placed.encode().unwrap().bytes, needed);
    }
}

#[test]
fn buffers_that_no_kernel_can_use_are_refused() {
    let driver = SimDriver::new(SimConfig::default());
    let buffers = CodecBuffers {
        codec: Codec::Zeros,
        dtype: DType::F32,
        raw: 4,
        raw_bytes: 1 << 20,
        stream: 16,
        stream_bytes: 1 << 21,
        status: 8,
    };
    for (wrong, message) in [
        (CodecBuffers { raw: 2, ..buffers }, "cannot reach a tensor at 0x2: it must be a multiple of 4"),
        (CodecBuffers { stream: 8, ..buffers }, "cannot reach its stream at 0x8: it must be a multiple of 16"),
        (CodecBuffers { status: 4, ..buffers }, "cannot reach its status at 0x4: it must be a multiple of 8"),
        (CodecBuffers { stream_bytes: 100, ..buffers }, "100 bytes are too few for any stream of 1048576"),
        (CodecBuffers { raw_bytes: 1 << 40, ..buffers }, "a tensor of 1099511627776 bytes is encoded in parts"),
    ] {
        // SAFETY: nothing is launched.
        let results = unsafe { [encode(&driver, StreamId::NULL, &wrong), decode(&driver, StreamId::NULL, &wrong)] };
        for result in results {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}

#[test]
fn a_refused_launch_is_an_error() {
    let driver = SimDriver::new(SimConfig::default());
    let placed = Placed::new(&driver, Codec::Zeros, DType::F32, &[0; 64], 128);
    // SAFETY: the test owns the memory.
    let error = unsafe { encode(&driver, StreamId(0xdead), &placed.buffers).unwrap_err() };
    let CodecLaunchError::Kernel(KernelError::Driver(error)) = error else { panic!("{error}") };
    assert!(matches!(error.kind, ErrorKind::UnknownHandle { .. }), "{error}");
}
