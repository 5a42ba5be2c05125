//! Tests of the operation: beside the same in basic operations, its gradients, its saved tensors, and a layer that
//! learns.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};

use lltm::{FORWARD, Lltm, lltm_cell};
use tenure_nn::optim::{Adam, Optimizer};
use tenure_nn::{Module, Scope};
use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{self, Gradcheck, SavedHooks};
use tenure_tensor::ops::LossReduction;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, DeviceKind, Result, Tensor};

/// Computes the operation with basic ones.
fn by_operations(gates: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
    let gates = gates.chunk(3, 1)?;
    let new_cell = cell.add(&gates[2].elu(1.0)?.mul(&gates[0].sigmoid()?)?)?;
    Ok((new_cell.tanh()?.mul(&gates[1].sigmoid()?)?, new_cell))
}

/// Returns gates and a cell that require gradients. The batch is large enough for several threads.
fn inputs(batch: usize, state: usize, dtype: DType) -> [Tensor; 2] {
    let generator = Generator::new(5);
    [3 * state, state].map(|columns| {
        let values = Tensor::randn(&[batch, columns], DType::F64, Device::CPU, &generator).unwrap();
        values.to_dtype(dtype).unwrap().requires_grad_(true).unwrap()
    })
}

/// Returns both outputs and both gradients, in `f64`.
fn results(function: impl Fn(&Tensor, &Tensor) -> Result<(Tensor, Tensor)>, inputs: &[Tensor; 2]) -> [Vec<f64>; 4] {
    let (hidden, cell) = function(&inputs[0], &inputs[1]).unwrap();
    let loss = hidden.mul(2.0).unwrap().add(&cell.mul(&cell).unwrap()).unwrap().sum_all().unwrap();
    let grads =
        autograd::grad(&[&loss], &[&inputs[0], &inputs[1]], &[None], autograd::BackwardOptions::default()).unwrap();
    let all = [&hidden, &cell, grads[0].as_ref().unwrap(), grads[1].as_ref().unwrap()];
    all.map(|tensor| tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap())
}

#[test]
fn it_is_what_basic_operations_make() {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let inputs = inputs(150, 33, dtype);
        let expected = results(by_operations, &inputs.each_ref().map(exact));
        for (found, expected) in results(lltm_cell, &inputs).iter().zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= tolerance * (1.0 + expected.abs()), "{dtype}: {found}, {expected}");
            }
        }
    }
}

fn exact(input: &Tensor) -> Tensor {
    input.detach().to_dtype(DType::F64).unwrap().requires_grad_(true).unwrap()
}

#[test]
fn its_gradients_are_derivatives_and_have_some_themselves() {
    let cell = |inputs: &[Tensor]| lltm_cell(&inputs[0], &inputs[1]).map(|(hidden, cell)| vec![hidden, cell]);
    let [gates, state] = inputs(2, 3, DType::F64);
    let transposed = inputs(3, 3, DType::F64)[1].detach().t().unwrap().requires_grad_(true).unwrap();
    let gates_of_three = inputs(3, 3, DType::F64)[0].clone();
    for inputs in [[gates, state], [gates_of_three, transposed]] {
        autograd::gradcheck(cell, &inputs, Gradcheck::default()).unwrap();
        autograd::gradgradcheck(cell, &inputs, Gradcheck::default()).unwrap();
    }
}

#[test]
fn an_empty_batch_has_empty_results() {
    let [hidden, cell, to_gates, to_cell] = results(lltm_cell, &inputs(0, 4, DType::F32));
    assert!(hidden.is_empty() && cell.is_empty() && to_gates.is_empty() && to_cell.is_empty());
}

#[test]
fn saved_tensors_go_through_hooks() {
    let [gates, cell] = inputs(2, 3, DType::F32);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hooks = {
        let seen = Arc::clone(&seen);
        let pack = move |tensor: &Tensor, _| {
            seen.lock().unwrap().push(tensor.sizes().to_vec());
            tensor.to_vec::<f32>().map(|values| (values, tensor.sizes().to_vec()))
        };
        SavedHooks::enter(pack, |(values, sizes): &(Vec<f32>, Vec<usize>)| Tensor::from_slice(values, sizes))
    };
    let (hidden, _) = lltm_cell(&gates, &cell).unwrap();
    drop(hooks);
    assert_eq!(*seen.lock().unwrap(), [[2, 9], [2, 3]]);
    hidden.sum_all().unwrap().backward().unwrap();
    let packed = gates.grad().unwrap().to_vec::<f32>().unwrap();
    gates.set_grad(None).unwrap();
    lltm_cell(&gates, &cell).unwrap().0.sum_all().unwrap().backward().unwrap();
    assert_eq!(gates.grad().unwrap().to_vec::<f32>().unwrap(), packed);
}

#[test]
fn mismatched_inputs_are_refused() {
    let [gates, cell] = inputs(2, 3, DType::F32);
    let error = |gates: &Tensor, cell: &Tensor| lltm_cell(gates, cell).err().unwrap().to_string();
    assert_eq!(
        error(&cell, &cell),
        "lltm_cell: gates [batch, 3 * state] and a cell [batch, state] are needed, got [2, 3] and [2, 3]"
    );
    assert_eq!(
        error(&gates, &cell.to_dtype(DType::F64).unwrap()),
        "lltm_cell: got float64, but float32 as of the gates is needed: convert one with to_dtype()"
    );
    let whole = |tensor: &Tensor| tensor.to_dtype(DType::I64).unwrap();
    assert!(error(&whole(&gates), &whole(&cell)).starts_with("lltm_cell is not implemented for int64 on cpu"));
}

#[test]
fn a_crate_can_compute_it_otherwise() {
    // Another device would do as well as another dtype: this one has no kernel in the crate.
    assert!(FORWARD.find(DeviceKind::Cpu, DType::U8).is_err());
    FORWARD.register(DeviceKind::Cpu, DType::U8, |out, _, cell| {
        out[0].copy_(cell)?;
        out[1].copy_(cell)
    });
    let cell = Tensor::from_slice(&[7_u8], &[1, 1]).unwrap();
    let gates = Tensor::zeros(&[1, 3], DType::U8, Device::CPU).unwrap();
    assert_eq!(lltm_cell(&gates, &cell).unwrap().0.to_vec::<u8>().unwrap(), [7]);
}

/// Returns the last hidden state after a few steps over a sequence.
fn read(layer: &Lltm, sequence: &[Tensor]) -> Result<Tensor> {
    let zeros = Tensor::zeros(&[sequence[0].sizes()[0], 4], DType::F32, Device::CPU)?;
    let state = (zeros.clone(), zeros);
    let step = |(hidden, cell): (Tensor, Tensor), input: &Tensor| layer.forward(input, (&hidden, &cell));
    Ok(sequence.iter().try_fold(state, step)?.0)
}

#[test]
fn a_layer_of_it_learns() {
    let generator = Generator::new(3);
    let layer = Lltm::new(&Scope::new(&generator), 2, 4).unwrap();
    let names: Vec<&str> = layer.state().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["weight", "bias"]);
    let sequence: Vec<Tensor> =
        (0..3).map(|_| Tensor::randn(&[8, 2], DType::F32, Device::CPU, &generator).unwrap()).collect();
    // The layer learns to remember the first input.
    let target = sequence[0].repeat(&[1, 2]).unwrap().tanh().unwrap().mul(0.5).unwrap();
    let mut optimizer = Optimizer::new(layer.parameters(), 0.05, Adam::w());
    let mut losses = Vec::new();
    for _ in 0..30 {
        layer.zero_grad();
        let loss = read(&layer, &sequence).unwrap().mse_loss(&target, LossReduction::Mean).unwrap();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        losses.push(loss.item::<f32>().unwrap());
    }
    assert!(losses[29] < 0.3 * losses[0], "{losses:?}");
}

#[test]
fn under_autocast_the_cell_stays_as_wide_as_it_is() {
    let layer = Lltm::new(&Scope::new(&Generator::new(3)), 2, 4).unwrap();
    let zeros = Tensor::zeros(&[1, 4], DType::F32, Device::CPU).unwrap();
    let input = Tensor::ones(&[1, 2], DType::F32, Device::CPU).unwrap();
    let _autocast = Autocast::enter(DType::BF16);
    assert_eq!(layer.forward(&input, (&zeros, &zeros)).unwrap().1.dtype(), DType::F32);
}
