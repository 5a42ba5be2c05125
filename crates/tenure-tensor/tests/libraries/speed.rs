//! What things take, for a reader on a real device: `speed --ignored --nocapture`.

use std::time::Instant;

use tenure_tensor::autograd::{self, Options};
use tenure_tensor::{Attention, Conv, DType, Device, MemoryFormat, Tensor};

use crate::common::{cuda, simulated};
use crate::compare::numbers;

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
#[ignore = "it measures"]
fn products() {
    if simulated().is_some() {
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

/// Convolutions of ResNet-50 on 128 images, channels last: each way, and how near to the device's rate.
#[test]
#[ignore = "it measures"]
fn convolutions() {
    if simulated().is_some() {
        return;
    }
    let last = |sizes: &[usize]| {
        let tensor = numbers(sizes, DType::BF16, 1).to_device(cuda()).unwrap();
        tensor.contiguous_in(MemoryFormat::ChannelsLast2d).unwrap().requires_grad_(true).unwrap()
    };
    for (channels, outputs, size, kernel, stride) in [
        (3, 64, 224, 7, 2),
        (64, 64, 56, 3, 1),
        (64, 256, 56, 1, 1),
        (128, 128, 28, 3, 1),
        (256, 256, 14, 3, 1),
        (512, 512, 7, 3, 1),
        (256, 512, 56, 1, 2),
    ] {
        let (input, weight) = (last(&[128, channels, size, size]), last(&[outputs, channels, kernel, kernel]));
        let how = Conv { stride: &[stride], padding: &[kernel / 2], ..Conv::default() };
        let out = input.conv(&weight, None, &how).unwrap();
        let grad = out.detach();
        let gradient = |of: &Tensor| {
            let options = Options { retain_graph: true, ..Options::default() };
            autograd::grad(&[&out], &[of], &[Some(&grad)], options).unwrap().remove(0).unwrap()
        };
        let forward = ms(|| input.conv(&weight, None, &how).unwrap().detach());
        let (to_input, to_weight) = (ms(|| gradient(&input)), ms(|| gradient(&weight)));
        let flop = 2.0 * (out.numel() * channels * kernel * kernel) as f64;
        let shown = |ms: f64| format!("{ms:.3} ms ({:.0} TFLOP/s)", flop / ms / 1e9);
        println!(
            "{channels:3} to {outputs:3} channels, {kernel}x{kernel}/{stride}, {size:3}: {}, input {}, weight {}",
            shown(forward),
            shown(to_input),
            shown(to_weight)
        );
    }
}

#[test]
#[ignore = "it measures"]
fn attention() {
    if simulated().is_some() {
        return;
    }
    // GPT-2, Llama 1.1B, BERT-base.
    for (dtype, batch, heads, kv_heads, length, width, is_causal) in [
        (DType::BF16, 8, 16, 16, 1024, 64, true),
        (DType::BF16, 4, 32, 4, 2048, 64, true),
        (DType::BF16, 4, 16, 16, 2048, 128, true),
        (DType::F32, 8, 12, 12, 128, 64, false),
    ] {
        let made = |heads: usize| {
            let tensor = numbers(&[batch, length, heads, width], dtype, 1).to_device(cuda()).unwrap();
            tensor.transpose(1, 2).unwrap().detach().requires_grad_(true).unwrap()
        };
        let (q, k, v) = (made(heads), made(kv_heads), made(kv_heads));
        let how = Attention { is_causal, ..Attention::default() };
        let out = q.attention(&k, &v, &how).unwrap();
        let grad = out.detach();
        let gradients = || {
            let options = Options { retain_graph: true, ..Options::default() };
            autograd::grad(&[&out], &[&q, &k, &v], &[Some(&grad)], options).unwrap().remove(0).unwrap()
        };
        let (forward, backward) = (ms(|| q.attention(&k, &v, &how).unwrap().detach()), ms(gradients));
        let flop = 4.0 * (batch * heads * length * length * width) as f64 / if is_causal { 2.0 } else { 1.0 };
        println!(
            "{dtype} {batch}x{heads}/{kv_heads}x{length}x{width}: {forward:.3} ms ({:.0} TFLOP/s), gradients {backward:.3} ms \
             ({:.0})",
            flop / forward / 1e9,
            2.5 * flop / backward / 1e9
        );
    }
}
