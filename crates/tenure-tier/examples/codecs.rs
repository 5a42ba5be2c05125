//! Ratio and speed of the codecs on several kinds of tensors, on one core, next to a copy of as many bytes:
//! `cargo run --release -p tenure-tier --example codecs`.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

use std::hint::black_box;
use std::time::Instant;

use tenure_core::DType;
use tenure_tier::codec::{Codec, CodecError, StreamReader, StreamWriter, sequential};

/// Larger than the caches of a core.
const BYTES: usize = 256 << 20;

fn main() -> Result<(), CodecError> {
    let raw = tensor(DType::F32, |x| x);
    let mut into = vec![1; BYTES];
    let copy = best(|| black_box(&mut into).copy_from_slice(black_box(&raw)));
    println!("a copy: {copy:.1} GB/s of one core");
    println!(
        "{:>9} {:>9} {:>14} {:>6} {:>14} {:>12} {:>12}",
        "codec", "dtype", "tensor", "ratio", "measure GB/s", "write GB/s", "read GB/s"
    );
    for (codec, dtype, name, of) in [
        (Codec::Zeros, DType::BF16, "half zeros", (|x: f32| x.max(0.0)) as fn(f32) -> f32),
        (Codec::Zeros, DType::F32, "half zeros", |x| x.max(0.0)),
        (Codec::Zeros, DType::U8, "half zeros", |x| x.max(0.0)),
        (Codec::Zeros, DType::BF16, "few zeros", |x| (x + 1.0).max(0.0)),
        (Codec::Planes, DType::BF16, "normal", |x| x),
        (Codec::Planes, DType::F32, "normal", |x| x),
        (Codec::Planes, DType::BF16, "silu", |x| x / (1.0 + (-x).exp())),
        (Codec::Fp16, DType::F32, "normal", |x| x),
        (Codec::CsrFp16, DType::F32, "half zeros", |x| x.max(0.0)),
    ] {
        let raw = tensor(dtype, of);
        let mut stream = vec![1; StreamWriter::new(codec, dtype, &raw, &sequential).encoded().bytes];
        let writer = StreamWriter::new(codec, dtype, &raw, &sequential);
        let measure = best(|| drop(black_box(StreamWriter::new(codec, dtype, black_box(&raw), &sequential))));
        let write = best(|| writer.write(black_box(&mut stream), &sequential));
        let reader = StreamReader::new(&stream)?;
        let mut read_result = Ok(());
        let read = best(|| read_result = reader.read(black_box(&mut into), &sequential));
        read_result?;
        assert!(codec.is_lossy() || into == raw, "it came back changed");
        let ratio = stream.len() as f64 / BYTES as f64;
        println!("{codec:>9} {dtype:>9} {name:>14} {ratio:>6.3} {measure:>14.1} {write:>12.1} {read:>12.1}");
    }
    Ok(())
}

/// Returns numbers that are nearly normally distributed, transformed by `of`.
fn tensor(dtype: DType, of: fn(f32) -> f32) -> Vec<u8> {
    let mut state = 1_u64;
    let some: Vec<f32> = (0..1 << 20).map(|_| of(normal(&mut state))).collect();
    let bytes: Vec<u8> = match dtype {
        DType::F32 => some.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::BF16 => some.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        _ => some.iter().map(|x| (x.abs() * 50.0) as u8).collect(),
    };
    bytes.repeat(BYTES / bytes.len())
}

/// Returns the next of numbers that are nearly normally distributed.
fn normal(state: &mut u64) -> f32 {
    let mut sum = 0.0;
    for _ in 0..12 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sum += (*state >> 40) as f32 / (1 << 24) as f32;
    }
    sum - 6.0
}

/// Returns the best speed of five runs in 10⁹ bytes of the tensor per second.
fn best(mut body: impl FnMut()) -> f64 {
    let seconds = (0..5).map(|_| {
        let start = Instant::now();
        body();
        start.elapsed().as_secs_f64()
    });
    BYTES as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}
