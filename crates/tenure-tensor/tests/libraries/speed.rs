//! What things take. Printed, for a reader: `--nocapture`, on a real device.

use std::time::Instant;

use tenure_tensor::{DType, Device, Tensor};

use crate::common::{cuda, is_real, numbers};

/// Milliseconds of one call, the mean of some after a few.
fn ms(call: impl Fn() -> Tensor) -> f64 {
    const COUNT: u32 = 20;
    let wait = |tensor: Tensor| drop(tensor.to_device(Device::CPU).unwrap());
    let small = |tensor: Tensor| tensor.flatten(0, -1).unwrap().narrow(0, 0, 1).unwrap();
    (0..3).for_each(|_| drop(call()));
    wait(small(call()));
    let start = Instant::now();
    (1..COUNT).for_each(|_| drop(call()));
    wait(small(call()));
    start.elapsed().as_secs_f64() * 1e3 / f64::from(COUNT)
}

#[test]
fn products() {
    if !is_real() {
        return;
    }
    let on = |sizes: &[usize], dtype| numbers(sizes, dtype, 1).to_device(cuda()).unwrap();
    for (dtype, size) in [(DType::BF16, 8192), (DType::F16, 8192), (DType::F32, 4096), (DType::F64, 4096)] {
        let (a, b) = (on(&[size, size], dtype), on(&[size, size], dtype));
        let ms = ms(|| a.matmul(&b).unwrap());
        println!("{dtype} {size}: {ms:.3} ms, {:.1} TFLOP/s", 2.0 * (size as f64).powi(3) / ms / 1e9);
    }
    let dtype = DType::BF16;
    for [rows, inputs, outputs] in [[8192, 1024, 4096], [8192, 4096, 1024], [8192, 2048, 5632], [8192, 1024, 50257]] {
        let (x, weight, bias) = (on(&[rows, inputs], dtype), on(&[outputs, inputs], dtype), on(&[outputs], dtype));
        let (plain, biased) = (ms(|| x.linear(&weight, None).unwrap()), ms(|| x.linear(&weight, Some(&bias)).unwrap()));
        let tflop_s = |ms: f64| 2.0 * (rows * inputs * outputs) as f64 / ms / 1e9;
        println!(
            "linear {rows}x{inputs}x{outputs}: {plain:.3} ms ({:.0} TFLOP/s), with a bias {biased:.3} ms ({:.0})",
            tflop_s(plain),
            tflop_s(biased)
        );
    }
    let (a, b) = (on(&[64, 64], dtype), on(&[64, 64], dtype));
    println!("64x64x64, of which most is the host's: {:.2} µs", 1e3 * ms(|| a.matmul(&b).unwrap()));
}
