//! Tests of reductions, row operations and scans of many sizes, on CUDA against the CPU: the paths of kernels for few
//! and for many elements. The device is a simulated one, where the CPU computes instead of the kernels, unless
//! `TENURE_TEST_DRIVER` is `cuda`.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::ops::{BatchNormParameters, CrossEntropy, LossReduction};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor};

use crate::common::{cuda, in_use, in_use_alone};

const FLOATS: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F64];

fn random(sizes: &[usize], dtype: DType) -> Tensor {
    let generator = Generator::new(sizes.iter().sum::<usize>() as u64);
    Tensor::randn(sizes, DType::F32, Device::CPU, &generator).unwrap().to_dtype(dtype).unwrap()
}

/// Returns the relative precision of a dtype.
fn precision(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::BF16 => 1e-2,
        DType::F16 => 2e-3,
        _ => 2e-5,
    }
}

/// Compares the results of `function`, and the gradients of its inputs, on both devices. Elements may differ by
/// `tolerance` times the dtype's precision, relative to the largest element.
fn compare(what: &str, inputs: &[Tensor], tolerance: f64, function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) {
    let _in_use = in_use();
    let run = |device: Device, with_grads: bool| {
        let inputs: Vec<Tensor> = inputs
            .iter()
            .map(|input| {
                let input = input.detach().to_device(device).unwrap();
                let wants = with_grads && input.dtype().is_floating();
                if wants { input.requires_grad_(true).unwrap() } else { input }
            })
            .collect();
        let mut found = function(&inputs).unwrap_or_else(|error| panic!("{what}: {error}"));
        let leaves: Vec<&Tensor> = inputs.iter().filter(|input| input.requires_grad()).collect();
        if !leaves.is_empty() {
            let roots: Vec<&Tensor> = found.iter().filter(|output| output.requires_grad()).collect();
            let upstream: Vec<Tensor> =
                roots.iter().map(|root| random(root.sizes(), root.dtype()).to_device(device).unwrap()).collect();
            let upstream: Vec<Option<&Tensor>> = upstream.iter().map(Some).collect();
            let options = BackwardOptions { allow_unused: true, ..BackwardOptions::default() };
            found.extend(autograd::grad(&roots, &leaves, &upstream, options).unwrap().into_iter().flatten());
        }
        let found = found.into_iter().map(|tensor| {
            let here = tensor.detach().to_device(Device::CPU).unwrap();
            here.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
        });
        found.collect::<Vec<_>>()
    };
    let precision = inputs.iter().map(|input| precision(input.dtype())).fold(0.0, f64::max) * tolerance;
    let with_grads = !what.starts_with("forward");
    for (number, (here, there)) in run(Device::CPU, with_grads).into_iter().zip(run(cuda(), with_grads)).enumerate() {
        assert_eq!(here.len(), there.len());
        let largest = here.iter().filter(|x| x.is_finite()).fold(1e-3_f64, |most, x| most.max(x.abs()));
        for (at, (here, there)) in here.iter().zip(&there).enumerate() {
            let is_near =
                (here - there).abs() <= precision * largest || here == there || (here.is_nan() && there.is_nan());
            assert!(is_near, "{what} of {:?}: {number} at {at}: {here}, on cuda {there}", inputs[0]);
        }
    }
}

/// Sizes, and the dimensions that are reduced.
const REDUCED: [(&[usize], &[isize]); 17] = [
    (&[], &[]),
    (&[1, 1], &[0]),
    (&[100_003], &[0]),
    (&[300, 257], &[1]),
    (&[300, 257], &[0]),
    (&[300, 256], &[0]),
    (&[256, 1024], &[1]),
    (&[8, 64, 7, 7], &[0, 2, 3]),
    (&[4, 16, 24, 24], &[0, 2, 3]),
    (&[3, 1000, 130], &[1]),
    (&[20_000, 4], &[1]),
    (&[5000, 12], &[1]),
    (&[2, 300_000], &[1]),
    (&[100_000, 3], &[0]),
    (&[100_000, 8], &[0]),
    (&[6, 5, 4, 3, 2, 7], &[0, 2, 4]),
    (&[0, 5], &[0]),
];

fn reductions(tensor: &Tensor, dims: &[isize]) -> Result<Vec<Tensor>> {
    let mut found = vec![tensor.sum(dims, false)?, tensor.mean(dims, true)?];
    let (variance, mean) = tensor.var_mean(dims, 0.0, false)?;
    found.extend([variance, mean, tensor.norm(1.0, dims, false)?, tensor.norm(2.0, dims, false)?]);
    found.push(tensor.logsumexp(dims, false)?);
    if tensor.numel() > 0 {
        found.extend([tensor.amax(dims, false)?, tensor.amin(dims, false)?]);
    }
    Ok(found)
}

#[test]
fn reductions_agree() {
    for (sizes, dims) in REDUCED {
        for dtype in FLOATS {
            let x = random(sizes, dtype);
            compare("forward reductions", std::slice::from_ref(&x), 4.0, |x| reductions(&x[0], dims));
            if sizes.len() == 4 {
                let last = x.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap();
                compare("forward channels last", &[last], 4.0, |x| reductions(&x[0], dims));
            }
            if let [_, n] = sizes
                && *n > 3
            {
                let sliced = x.narrow(1, 1, n - 2).unwrap();
                compare("forward sliced", &[sliced], 4.0, |x| reductions(&x[0], dims));
                let sparse = x.slice(1, 0, *n as isize, 3).unwrap();
                compare("forward strided", &[sparse], 4.0, |x| reductions(&x[0], dims));
            }
        }
        let near_one = random(sizes, DType::F32).mul(1e-3).unwrap().add(1.0).unwrap();
        compare("forward prod", &[near_one], 16.0, |x| Ok(vec![x[0].prod(dims, false)?]));
        let integers = random(sizes, DType::F32).mul(100.0).unwrap().to_dtype(DType::I64).unwrap();
        compare("forward integers", &[integers], 1e-6, |x| {
            let mut found = vec![x[0].sum(dims, false)?, x[0].prod(dims, false)?, x[0].gt(0)?.sum(dims, false)?];
            if x[0].numel() > 0 {
                found.extend([x[0].amax(dims, false)?, x[0].amin(dims, false)?, x[0].gt(0)?.any(dims, false)?]);
                if let [dim] = dims {
                    found.extend([
                        x[0].argmax(Some(*dim), false)?,
                        x[0].argmin(Some(*dim), true)?,
                        x[0].argmax(None, false)?,
                    ]);
                }
            }
            Ok(found)
        });
    }
}

#[test]
fn means_far_from_zero_leave_variances_as_they_are() {
    let _in_use = in_use();
    for (sizes, dims) in [([64, 4096], [1]), ([65_536, 8], [0])] {
        let x = random(&sizes, DType::F32).add(1e4).unwrap().to_device(cuda()).unwrap();
        let variance = x.var(&dims, 0.0, false).unwrap().to_vec::<f32>().unwrap();
        assert!(variance.iter().all(|variance| (variance - 1.0).abs() < 0.12), "{variance:?}");
    }
}

#[test]
fn softmax_agrees() {
    for n in [1, 2, 3, 10, 31, 32, 33, 100, 127, 512, 1000, 1025, 4097, 12_288, 20_001, 70_000] {
        let rows = if n > 2000 { 2 } else { 37 };
        for dtype in FLOATS {
            let x = random(&[rows, n], dtype);
            compare("softmax", std::slice::from_ref(&x), 2.0, |x| Ok(vec![x[0].softmax(1)?, x[0].log_softmax(1)?]));
        }
    }
    for sizes in [[3, 50, 7], [2, 1000, 3], [1, 5, 300]] {
        let x = random(&sizes, DType::F32);
        compare("softmax", &[x], 2.0, |x| Ok(vec![x[0].softmax(1)?, x[0].log_softmax(1)?]));
    }
    let mut masked = random(&[4, 40_000], DType::F32);
    masked = masked.gt(1.0).unwrap().where_(&masked, f64::NEG_INFINITY).unwrap();
    masked.select(0, 2).unwrap().fill_(f64::NEG_INFINITY).unwrap();
    compare("forward softmax of masks", &[masked], 2.0, |x| Ok(vec![x[0].softmax(1)?, x[0].softmax(0)?]));
}

#[test]
fn normalised_rows_agree() {
    for (rows, n) in
        [(1, 1), (3, 5), (50, 8), (70, 24), (300, 100), (33, 768), (1100, 64), (7, 4096), (3, 10_000), (2, 40_000)]
    {
        for dtype in FLOATS {
            let x = random(&[rows, n], dtype).add(0.5).unwrap();
            let weight = random(&[n], dtype);
            let bias = random(&[n], dtype).mul(0.5).unwrap();
            compare("layer_norm", &[x, weight, bias], 8.0, |x| {
                let plain = x[0].layer_norm(&[n], None, None, 1e-5)?;
                let root = x[0].rms_norm(&[n], Some(&x[1]), 1e-6)?;
                Ok(vec![x[0].layer_norm(&[n], Some(&x[1]), Some(&x[2]), 1e-5)?, plain, root])
            });
        }
    }
}

/// Several layers use one input, so each adds its gradient to those before.
#[test]
fn layers_of_one_input_agree() {
    for dtype in FLOATS {
        for sizes in [[2, 3, 8], [4, 40, 64], [1, 7, 33]] {
            let inner = sizes[2];
            let x = random(&sizes, dtype);
            let weight = random(&[24, inner], dtype);
            let bias = random(&[24], dtype);
            let scale = random(&[inner], dtype);
            compare("layers", &[x, weight, bias, scale], 8.0, |x| {
                let plain = x[0].linear(&x[1], None)?;
                let norm = x[0].rms_norm(&[inner], Some(&x[3]), 1e-5)?;
                Ok(vec![x[0].mul(0.5)?, x[0].linear(&x[1], Some(&x[2]))?, norm, plain])
            });
        }
    }
}

#[test]
fn normalised_channels_agree() {
    for sizes in [[2, 8, 3, 3], [16, 32, 14, 14], [4, 64, 7, 7], [3, 6, 33, 1]] {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            let x = random(&sizes, dtype);
            let last = x.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap();
            let weight = random(&[sizes[1]], DType::F32);
            let bias = random(&[sizes[1]], DType::F32);
            let averages = [random(&[sizes[1]], DType::F32), weight.abs().unwrap().detach()];
            for x in [x, last] {
                compare("batch_norm", &[x.clone(), weight.clone(), bias.clone()], 8.0, |x| {
                    let batch = x[0].batch_norm(None, Some(&x[1]), Some(&x[2]), true, 0.1, 1e-5)?;
                    Ok(vec![batch, x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5)?])
                });
                let (x, carried) = (x.detach(), x.detach().mul(0.5).unwrap());
                let inputs = [x, weight.detach(), bias.detach(), carried, averages[0].detach(), averages[1].detach()];
                for training in [false, true] {
                    for is_carried in [false, true] {
                        batch_norm_relu_agrees(&inputs, training, is_carried);
                    }
                }
            }
        }
    }
}

/// Compares with the inputs: input, weight, bias, summand, and running averages.
fn batch_norm_relu_agrees(inputs: &[Tensor; 6], training: bool, is_carried: bool) {
    let norm = |x: &[Tensor]| -> Result<[Tensor; 3]> {
        let mean = x[4].detach().copy()?;
        let variance = x[5].detach().copy()?;
        let running = Some((&mean, &variance));
        let weight = Some(&x[1]);
        let bias = Some(&x[2]);
        let norm = BatchNormParameters { running, weight, bias, training, momentum: 0.1, eps: 1e-5 };
        Ok([x[0].batch_norm_relu(is_carried.then_some(&x[3]), &norm)?, mean, variance])
    };
    compare("forward batch_norm_relu", inputs, 8.0, |x| Ok(norm(x)?.to_vec()));
    // An output within rounding of 0 may be cut off on one device only, and its gradient with it. So the CPU's composed
    // version cuts off the elements that the other device cuts off.
    let in_use = in_use();
    let there: Vec<Tensor> = inputs.iter().map(|input| input.to_device(cuda()).unwrap()).collect();
    let is_above = norm(&there).unwrap()[0].gt(0.0).unwrap().to_device(Device::CPU).unwrap();
    drop(in_use);
    let inputs: Vec<Tensor> = inputs.iter().cloned().chain([is_above]).collect();
    compare("batch_norm_relu", &inputs, 8.0, |x| {
        if !x[0].device().is_cpu() {
            return Ok(norm(x)?[..1].to_vec());
        }
        let mean = x[4].detach();
        let variance = x[5].detach();
        let running = (!training).then_some((&mean, &variance));
        let mut out = x[0].batch_norm(running, Some(&x[1]), Some(&x[2]), training, 0.1, 1e-5)?;
        if is_carried {
            out = out.add(&x[3])?;
        }
        Ok(vec![x[6].where_(&out, 0.0)?])
    });
}

#[test]
fn cross_entropy_agrees() {
    for (rows, n) in [(3, 2), (130, 10), (40, 1000), (3, 1001), (2, 50_257), (2, 70_001)] {
        let classes: Vec<i64> =
            (0..rows as i64).map(|row| if row % 7 == 1 { -100 } else { row * 31 % n as i64 }).collect();
        let target = Tensor::from_slice(&classes, &[rows]).unwrap();
        let weights = random(&[n], DType::F32).abs().unwrap();
        for dtype in FLOATS {
            let x = random(&[rows, n], dtype).mul(3.0).unwrap();
            compare("cross_entropy", &[x, target.clone(), weights.clone()], 4.0, |x| {
                let mut found = Vec::new();
                for (weight, label_smoothing) in [(None, 0.0), (None, 0.1), (Some(&x[2]), 0.0), (Some(&x[2]), 0.2)] {
                    let weight = weight.map(Tensor::detach);
                    let reduction = if label_smoothing > 0.0 { LossReduction::Mean } else { LossReduction::None };
                    let weight = weight.as_ref();
                    let options = CrossEntropy { weight, label_smoothing, reduction, ..CrossEntropy::default() };
                    found.push(x[0].cross_entropy(&x[1], &options)?);
                }
                Ok(found)
            });
        }
    }
}

#[test]
fn a_class_that_is_not_there_is_an_error_that_comes_late() {
    let _alone = in_use_alone();
    let scores = random(&[2, 3], DType::F32).to_device(cuda()).unwrap();
    let target = Tensor::from_slice(&[1_i64, 3], &[2]).unwrap().to_device(cuda()).unwrap();
    let loss = scores.cross_entropy(&target, &CrossEntropy::default()).and_then(|loss| loss.item::<f32>());
    let error = loss.unwrap_err().to_string();
    assert!(error.contains("cross_entropy") && error.contains('3'), "{error}");
}

#[test]
fn running_sums_agree() {
    for n in [1, 7, 31, 33, 1000, 5000, 100_000] {
        for dtype in FLOATS {
            let x = random(&[3, n], dtype).mul(0.1).unwrap();
            compare("forward cumsum", &[x], 8.0, |x| Ok(vec![x[0].cumsum(1)?, x[0].cumsum(0)?]));
        }
        let near_one = random(&[2, n], DType::F32).mul(1e-4).unwrap().add(1.0).unwrap();
        compare("forward cumprod", &[near_one], 64.0, |x| Ok(vec![x[0].cumprod(1)?]));
        let columns = random(&[n, 5], DType::F32).mul(10.0).unwrap();
        compare("forward cumsum", &[columns.to_dtype(DType::I64).unwrap()], 1e-6, |x| Ok(vec![x[0].cumsum(0)?]));
        compare("forward cumsum", &[columns], 8.0, |x| Ok(vec![x[0].cumsum(0)?]));
    }
}

#[test]
fn scores_whose_rows_are_set_apart_agree() {
    let (rows, width, classes) = (70, 24, 1027);
    let target: Vec<i64> = (0..rows as i64).map(|row| row * 31 % classes as i64).collect();
    let target = Tensor::from_slice(&target, &[rows]).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        // One weight has the layout of a layer's, the other is transposed.
        for is_transposed in [false, true] {
            let sizes = if is_transposed { [width, classes] } else { [classes, width] };
            let inputs = [random(&[rows, width], dtype), random(&sizes, dtype), target.clone()];
            compare("linear and cross_entropy", &inputs, 8.0, |x| {
                let weight = if is_transposed { x[1].transpose(0, 1)? } else { x[1].clone() };
                let scores = x[0].linear(&weight, None)?;
                assert_eq!(scores.is_contiguous(), scores.device().is_cpu());
                let batch = scores.view(&[7, 10, -1])?.softmax(-1)?;
                Ok(vec![scores.cross_entropy(&x[2], &CrossEntropy::default())?, batch, scores.sum(&[0], false)?])
            });
        }
    }
}
