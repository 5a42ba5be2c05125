//! Tests of operations that move elements, on CUDA against the CPU, with sizes for each case that kernels distinguish.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::ops::{ELLIPSIS, cat};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, MemoryFormat, Pool, Result, Tensor, TensorError};

use crate::common::{cuda, in_use, in_use_alone};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let here = tensor.detach().to_device(Device::CPU).unwrap();
    here.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Compares the results of `make` on both devices, up to a tolerance.
fn check(what: &str, tolerance: f64, make: impl Fn(Device) -> Result<Vec<Tensor>>) {
    let _in_use = in_use();
    let expected = make(Device::CPU).unwrap();
    let found = make(cuda()).unwrap();
    assert_eq!(expected.len(), found.len());
    for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert_eq!((expected.sizes(), expected.dtype()), (found.sizes(), found.dtype()), "{what}, {index}");
        for (at, (expected, found)) in numbers(expected).into_iter().zip(numbers(found)).enumerate() {
            let is_near = (expected - found).abs() <= tolerance * expected.abs().max(1.0);
            let is_same = expected == found || (expected.is_nan() && found.is_nan());
            assert!(is_near || is_same, "{what}, {index}, element {at}: {found}, expected {expected}");
        }
    }
}

/// Returns integers from 0 to below `end`, drawn on the CPU.
fn integers(end: i64, sizes: &[usize], device: Device) -> Result<Tensor> {
    Tensor::randint(0, end, sizes, DType::I64, Device::CPU, &Generator::new(5))?.to_device(device)
}

fn normal(sizes: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    Tensor::randn(sizes, DType::F32, Device::CPU, &Generator::new(6))?.to_dtype(dtype)?.to_device(device)
}

#[test]
fn tensors_are_joined_in_any_layout() {
    for dtype in [DType::F32, DType::BF16, DType::F64, DType::U8] {
        check("cat", 0.0, |device| {
            let mut found = Vec::new();
            for (channels, format) in [
                ([8, 16, 8, 4], MemoryFormat::ChannelsLast2d),
                ([8, 16, 8, 4], MemoryFormat::Contiguous),
                ([3, 1, 5, 7], MemoryFormat::ChannelsLast2d),
                ([3, 0, 5, 1], MemoryFormat::Contiguous),
            ] {
                let parts: Vec<Tensor> = channels
                    .into_iter()
                    .map(|channels| {
                        let images = normal(&[3, channels, 5, 7], DType::F32, device)?.contiguous_in(format)?;
                        images.mul(8)?.to_dtype(dtype)
                    })
                    .collect::<Result<_>>()?;
                found.push(cat(&parts.iter().collect::<Vec<_>>(), 1)?);
                found.push(cat(&[&parts[0], &parts[0]], 0)?);
                found.push(cat(&[&parts[0], &parts[0].narrow(2, 1, 3)?], 2)?);
                // These parts have another layout than the whole.
                let other = parts[2].contiguous_in(MemoryFormat::Contiguous)?;
                found.push(cat(&[&parts[0], &other, &parts[0].transpose(2, 3)?.contiguous()?.transpose(2, 3)?], 1)?);
            }
            let row = normal(&[70, 33], DType::F32, device)?.mul(8)?.to_dtype(dtype)?;
            let columns: Vec<Tensor> = (0..70).map(|at| row.narrow(0, at, 1)).collect::<Result<_>>()?;
            found.push(cat(&columns.iter().collect::<Vec<_>>(), 0)?);
            found.push(cat(&columns[..64].iter().collect::<Vec<_>>(), 1)?);
            Ok(found)
        });
    }
}

fn generator(seed: u64) -> Generator {
    Generator::new(seed << 33 | 7)
}

#[test]
fn random_bits_are_those_of_the_cpu() {
    for count in [1, 7, 1000, 4099] {
        for dtype in FLOATS {
            check("rand", 0.0, |device| Ok(vec![Tensor::rand(&[count], dtype, device, &generator(1))?]));
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 2e-6 };
            // Near a boundary, a 16-bit float may be rounded the other way.
            let tolerance = if dtype.size() == 2 { 8e-3 } else { tolerance };
            check("randn", tolerance, |device| Ok(vec![Tensor::randn(&[count], dtype, device, &generator(2))?]));
            check("dropout", 0.0, |device| {
                tenure_tensor::random::manual_seed(3);
                Ok(vec![normal(&[count], dtype, device)?.dropout(0.3, true)?])
            });
            check("bernoulli", 0.0, |device| {
                let probabilities = Tensor::rand(&[count], dtype, Device::CPU, &generator(4))?.to_device(device)?;
                Ok(vec![probabilities.bernoulli(&generator(5))?])
            });
        }
        for dtype in [DType::U8, DType::I32, DType::I64, DType::F32, DType::Bool] {
            check("randint", 0.0, |device| {
                let drawn = Tensor::randint(0, 2, &[count], dtype, device, &Generator::new(1))?;
                let written = Tensor::zeros(&[count + 1], dtype, device)?.narrow(0, 1, count)?;
                written.bernoulli_(0.25, &Generator::new(2))?;
                Ok(vec![drawn, written])
            });
        }
        check("randperm", 0.0, |device| Ok(vec![Tensor::randperm(count, device, &Generator::new(9))?]));
    }
    check("randperm", 0.0, |device| Ok(vec![Tensor::randperm(70_001, device, &Generator::new(9))?]));
}

#[test]
fn elements_are_in_order_whatever_their_number() {
    for sizes in [&[3, 200][..], &[2, 300], &[2, 5000], &[70_000]] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::I8, DType::Bool] {
            for descending in [false, true] {
                check("sort", 0.0, |device| {
                    let x = match dtype.is_floating() {
                        // Among these are NaN, both zeros and equal numbers.
                        true => integers(40, sizes, device)?
                            .sub(20)?
                            .to_dtype(dtype)?
                            .div(0.0)?
                            .add(&normal(sizes, dtype, device)?)?,
                        false => integers(100, sizes, device)?.sub(50)?.to_dtype(dtype)?,
                    };
                    Ok(vec![x.argsort(-1, descending, false)?])
                });
            }
        }
    }
    check("topk", 0.0, |device| {
        let (values, order) = normal(&[4, 3000], DType::F32, device)?.topk(7, 1, true)?;
        Ok(vec![values, order])
    });
}

#[test]
fn sums_by_index_are_those_of_the_cpu() {
    // These are few rows and many, rows with many additions, and a single row with all of them.
    for (rows, width, count) in [(5, 8, 40), (50, 24, 900), (3000, 1, 2000), (1, 40, 3000), (70_000, 16, 70)] {
        for dtype in FLOATS {
            // 16-bit floats are rounded at every addition on the CPU, and once on a device.
            let additions = (count as f64 / rows as f64).max(1.0);
            let tolerance = if dtype.size() == 2 { 2e-2 * additions.sqrt() } else { 1e-4 };
            check("embedding", tolerance, |device| {
                let table = normal(&[rows, width], dtype, device)?.requires_grad_(true)?;
                let found = table.embedding(&integers(rows as i64, &[count], device)?)?;
                let weight = normal(found.sizes(), dtype, device)?;
                let grads = autograd::grad(&[&found], &[&table], &[Some(&weight)], BackwardOptions::default())?;
                Ok([vec![found.detach()], grads.into_iter().flatten().collect()].concat())
            });
            check("scatter_add", tolerance, |device| {
                let target = normal(&[3, rows, 2], dtype, device)?;
                let index = integers(rows as i64, &[3, count, 2], device)?;
                Ok(vec![target.scatter_add(1, &index, &normal(&[3, count, 2], dtype, device)?)?])
            });
        }
        check("integers", 0.0, |device| {
            let index = integers(rows as i64, &[count], device)?;
            let values = integers(100, &[count, width], device)?;
            Ok(vec![Tensor::zeros(&[rows, width], DType::I64, device)?.index_add(0, &index, &values)?])
        });
    }
}

#[test]
fn the_last_write_stays() {
    for count in [1, 300, 5000] {
        check("index_copy", 0.0, |device| {
            let target = Tensor::zeros(&[50, 24], DType::BF16, device)?;
            let index = integers(50, &[count], device)?;
            Ok(vec![target.index_copy(0, &index, &normal(&[count, 24], DType::BF16, device)?)?])
        });
        check("scatter", 0.0, |device| {
            let target = Tensor::zeros(&[60, 8], DType::F32, device)?;
            let index = integers(60, &[count, 8], device)?;
            Ok(vec![target.scatter(0, &index, &normal(&[count, 8], DType::F32, device)?)?])
        });
    }
}

#[test]
fn elements_are_found_picked_and_turned() {
    for count in [10, 4096, 100_003] {
        check("nonzero", 0.0, |device| Ok(vec![integers(5, &[count], device)?.eq(2)?.nonzero()?]));
    }
    for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64] {
        check("moved", 0.0, |device| {
            let x = integers(200, &[5, 40, 33], device)?.to_dtype(dtype)?;
            let index = integers(40, &[70], device)?;
            let flipped = x.flip(&[1])?.flip(&[2])?;
            let triangle = x.tril(-3)?;
            let even = x.narrow(2, 0, 32)?.contiguous()?;
            let more = [even.flip(&[0])?, even.triu(2)?, even.index_select(1, &index)?, even.index((ELLIPSIS, 3..9))?];
            Ok([
                &[
                    flipped,
                    triangle,
                    x.index_select(1, &index)?,
                    x.gather(1, &index.view(&[1, 70, 1])?.expand(&[5, 70, 33])?)?,
                ][..],
                &more,
            ]
            .concat())
        });
        check("transposed", 0.0, |device| {
            let x = integers(200, &[2, 70, 9, 41], device)?.to_dtype(dtype)?;
            let last = x.contiguous_in(MemoryFormat::ChannelsLast2d)?;
            let back = last.to_dtype(DType::F32)?.contiguous()?;
            Ok(vec![last, back, x.transpose(1, 3)?.contiguous()?, x.transpose(0, 1)?.contiguous()?])
        });
    }
}

#[test]
fn images_are_pooled_as_they_lie() {
    let window = Pool { kernel: &[3, 3], stride: &[2], padding: &[1], ..Pool::default() };
    for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast2d] {
        for (dtype, channels) in [(DType::F32, 8), (DType::BF16, 16), (DType::F64, 3)] {
            check("pool", if dtype == DType::BF16 { 1e-2 } else { 1e-6 }, |device| {
                let x = normal(&[2, channels, 13, 11], dtype, device)?.contiguous_in(format)?.requires_grad_(true)?;
                let dilated = Pool { kernel: &[2, 3], stride: &[2], padding: &[1], dilation: &[2], ceil: true };
                let pooled = [
                    x.max_pool(&window)?,
                    x.max_pool(&dilated)?,
                    x.avg_pool(&window, false)?,
                    x.avg_pool(&Pool { ceil: true, ..window }, true)?,
                    x.adaptive_avg_pool(&[5, 3])?,
                    x.adaptive_avg_pool(&[1, 1])?,
                ];
                let mut found = Vec::new();
                for y in pooled {
                    if !device.is_cpu() {
                        assert!(y.layout().is_contiguous_in(format), "{format}: {y:?}");
                    }
                    let weight = normal(y.sizes(), dtype, device)?;
                    let grads = autograd::grad(&[&y], &[&x], &[Some(&weight)], BackwardOptions::default())?;
                    found.extend(grads.into_iter().flatten());
                    found.push(y.detach());
                }
                Ok(found)
            });
        }
    }
}

#[test]
fn ranges_are_those_of_the_cpu() {
    for dtype in [DType::I32, DType::I64, DType::F32, DType::F64, DType::BF16] {
        check("ranges", 1e-12, |device| {
            let powers = Tensor::logspace(-2.0, 1.0, 5, 3.0, dtype, device)?;
            let between = Tensor::linspace(-3.0, 17.0, 301, dtype, device)?;
            Ok(vec![
                Tensor::arange(5, 900, 7, dtype, device)?,
                Tensor::arange(0.5, 90.0, 0.7, dtype, device)?,
                between,
                powers,
            ])
        });
    }
}

#[test]
fn copies_in_place_come_from_any_device() {
    let _in_use = in_use();
    let x = normal(&[4, 6], DType::F32, Device::CPU).unwrap();
    let there = Tensor::zeros(&[4, 6], DType::F32, cuda()).unwrap();
    there.copy_(&x).unwrap();
    let turned = Tensor::zeros(&[6, 4], DType::F64, Device::CPU).unwrap();
    turned.t().unwrap().copy_(&there).unwrap();
    let turned = turned.t().unwrap().to_dtype(DType::F32).unwrap();
    assert_eq!(turned.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
}

fn error(result: Result<Tensor>) -> TensorError {
    result.and_then(|tensor| tensor.to_vec::<f32>()).unwrap_err()
}

#[test]
fn errors_are_reported_later() {
    let _alone = in_use_alone();
    let index = Tensor::from_slice(&[0_i64, 9, 1], &[3]).unwrap().to_device(cuda()).unwrap();
    let table = Tensor::zeros(&[4, 2], DType::F32, cuda()).unwrap();
    let rows = Tensor::ones(&[3, 2], DType::F32, cuda()).unwrap();
    for error in [error(table.embedding(&index)), error(table.index_add(0, &index, &rows))] {
        let TensorError::Late(error) = error else { panic!("{error}") };
        assert!(matches!(*error, TensorError::Index { index: 9, size: 4, .. }), "{error}");
    }
    let half = Tensor::full(&[3], 1.5, DType::F32, cuda()).unwrap();
    let error = error(half.bernoulli(&Generator::new(0))).to_string();
    assert!(error.contains("probabilities are between 0 and 1, got 1.5"), "{error}");
    assert!(table.to_vec::<f32>().is_ok());
    let here = Tensor::from_slice(&[0_i64], &[1]).unwrap();
    assert!(matches!(table.index_select(0, &here), Err(TensorError::Device { .. })));
    assert!(matches!(table.index_fill(0, &here, 1), Err(TensorError::Device { .. })));
}

#[test]
fn large_tensors_are_shown_as_on_the_cpu() {
    let _in_use = in_use();
    for sizes in [&[2000][..], &[7, 300], &[8, 9, 40]] {
        let here = normal(sizes, DType::F32, Device::CPU).unwrap();
        let text = here.to_device(cuda()).unwrap().to_string();
        // The device comes last, on the same line or on one of its own.
        let text = text.replace(", device='cuda:0'", "").replace(",\n       device='cuda:0'", "");
        assert_eq!(text, here.to_string());
    }
}
