//! A benchmark of the codecs' CUDA kernels, next to a copy on the device. Without a GPU it prints why it was skipped.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where a call fails")]

use tenure_core::{DType, StreamId};
use tenure_device::cuda;
use tenure_device::{Driver, EventKind, Platform, Priority};
use tenure_tier::codec::cuda::{CodecBuffers, STATUS_BYTES, decode, encode, encoded};
use tenure_tier::codec::{Codec, max_bytes};

const BYTES: usize = 256 << 20;

/// Returns the mean speed over ten runs in 10⁹ bytes of the tensor per second.
fn rate(driver: &dyn Driver, stream: StreamId, mut body: impl FnMut()) -> f64 {
    const TIMES: u32 = 10;
    let [start, end] = [(); 2].map(|()| driver.create_event(EventKind::Timing).unwrap());
    body();
    driver.record_event(start, stream).unwrap();
    (0..TIMES).for_each(|_| body());
    driver.record_event(end, stream).unwrap();
    driver.synchronize_event(end).unwrap();
    let us = driver.elapsed_us(start, end).unwrap() / f64::from(TIMES);
    [start, end].into_iter().for_each(|event| driver.destroy_event(event).unwrap());
    BYTES as f64 / us / 1e3
}

/// Returns random numbers around 0 or, with `has_zeros`, those above 0 and zeros in place of the others.
fn tensor(dtype: DType, has_zeros: bool) -> Vec<u8> {
    let mut state = 1_u64;
    let mut normal = move || (0..4).map(|_| uniform(&mut state)).sum::<f32>();
    let values = (0..(1 << 20) / dtype.size()).map(|_| if has_zeros { normal().max(0.0) } else { normal() });
    // A bf16 is the upper half of an f32.
    let some: Vec<u8> = values.flat_map(|value| value.to_le_bytes()[4 - dtype.size()..].to_vec()).collect();
    some.repeat(BYTES / some.len())
}

/// Returns the next of uniformly distributed numbers from -0.5 to 0.5.
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    (*state >> 40) as f32 / (1 << 24) as f32 - 0.5
}

fn main() {
    if let Err(error) = cuda::platform().device_count() {
        eprintln!("skipped: {error}");
        return;
    }
    let driver = cuda::platform().driver(0).unwrap();
    let stream = driver.create_stream(Priority::Default).unwrap();
    for (codec, dtype, has_zeros) in [
        (Codec::None, DType::BF16, false),
        (Codec::Zeros, DType::BF16, true),
        (Codec::Zeros, DType::F32, true),
        (Codec::Planes, DType::BF16, false),
        (Codec::Planes, DType::F32, false),
        (Codec::Fp16, DType::F32, false),
        (Codec::CsrFp16, DType::F32, true),
    ] {
        let stream_bytes = max_bytes(dtype, BYTES);
        let [raw, to, status] = [BYTES, stream_bytes, STATUS_BYTES].map(|bytes| driver.malloc(bytes as u64).unwrap());
        driver.copy_to_device(raw, &tensor(dtype, has_zeros), stream).unwrap();
        let buffers = CodecBuffers { codec, dtype, raw, raw_bytes: BYTES, stream: to, stream_bytes, status };
        // SAFETY: this function owns the memory until the end.
        let encoding = rate(&*driver, stream, || unsafe { encode(&*driver, stream, &buffers).unwrap() });
        let mut told = [0; STATUS_BYTES];
        driver.copy_from_device(&mut told, status, stream).unwrap();
        let ratio = encoded(&buffers, told).unwrap().bytes as f64 / BYTES as f64;
        // SAFETY: as above.
        let decoding = rate(&*driver, stream, || unsafe { decode(&*driver, stream, &buffers).unwrap() });
        let copying = rate(&*driver, stream, || driver.copy_on_device(to, raw, BYTES as u64, stream).unwrap());
        println!(
            "{codec:>9} {dtype:>9} ratio {ratio:.3}: encoded at {encoding:.0} GB/s, decoded at {decoding:.0}, \
             copied at {copying:.0}"
        );
        [raw, to, status].into_iter().for_each(|address| driver.free(address).unwrap());
    }
    driver.destroy_stream(stream).unwrap();
}
