//! Random programs of views, writes in place and arithmetic: where one is allowed, its gradients agree with
//! differences.

use proptest::prelude::*;
use tenure_tensor::autograd::{self, Gradcheck};
use tenure_tensor::{AutogradError, DType, Device, Result, Tensor, TensorError};

/// One operation on tensors of the pool, which are given by index.
#[derive(Clone, Debug)]
enum Step {
    Mul(usize, usize),
    Sub(usize, usize),
    Exp(usize),
    Transpose(usize),
    Select(usize, bool),
    Narrow(usize, bool),
    Expand(usize),
    Flat(usize),
    Split(usize),
    AddInPlace(usize, usize),
    MulInPlace(usize, usize),
    DivInPlace(usize, usize),
    Copy(usize, usize),
    Fill(usize),
    Tanh(usize),
    Checkpoint(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let one = 0..12_usize;
    let two = (0..12_usize, 0..12_usize);
    let either = (0..12_usize, any::<bool>());
    prop_oneof![
        two.clone().prop_map(|(a, b)| Step::Mul(a, b)),
        two.clone().prop_map(|(a, b)| Step::Sub(a, b)),
        one.clone().prop_map(Step::Exp),
        one.clone().prop_map(Step::Transpose),
        either.clone().prop_map(|(a, last)| Step::Select(a, last)),
        either.prop_map(|(a, last)| Step::Narrow(a, last)),
        one.clone().prop_map(Step::Expand),
        one.clone().prop_map(Step::Flat),
        one.clone().prop_map(Step::Split),
        two.clone().prop_map(|(a, b)| Step::AddInPlace(a, b)),
        two.clone().prop_map(|(a, b)| Step::MulInPlace(a, b)),
        two.clone().prop_map(|(a, b)| Step::DivInPlace(a, b)),
        two.clone().prop_map(|(a, b)| Step::Copy(a, b)),
        one.clone().prop_map(Step::Fill),
        one.prop_map(Step::Tanh),
        two.prop_map(|(a, b)| Step::Checkpoint(a, b)),
    ]
}

/// Runs the steps and returns the pool. Steps that fail for their sizes or layout are left out.
fn run(steps: &[Step], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let constant = Tensor::full(&[2, 2], 1.5, DType::F64, Device::CPU)?;
    let mut pool = vec![inputs[0].mul(2)?, inputs[1].mul(1)?, constant];
    for step in steps {
        match take(step, &pool) {
            Ok(made) => pool.extend(made),
            Err(TensorError::Autograd(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(pool)
}

fn take(step: &Step, pool: &[Tensor]) -> Result<Vec<Tensor>> {
    let at = |index: &usize| &pool[index % pool.len()];
    Ok(vec![match step {
        Step::Mul(a, b) => at(a).mul(at(b))?,
        Step::Sub(a, b) => at(a).sub(at(b))?,
        Step::Exp(a) => at(a).tanh()?.exp()?,
        Step::Transpose(a) => at(a).transpose(0, -1)?,
        Step::Select(a, last) => at(a).select(0, -isize::from(*last))?,
        Step::Narrow(a, last) => at(a).narrow(-1, usize::from(*last), 1)?,
        Step::Expand(a) => at(a).narrow(0, 0, 1)?.expand(&[2, 2])?,
        Step::Flat(a) => at(a).view(&[-1])?,
        Step::Split(a) => return at(a).unbind(0),
        Step::AddInPlace(a, b) => return at(a).add_(at(b)).map(|()| vec![]),
        Step::MulInPlace(a, b) => return at(a).mul_(at(b)).map(|()| vec![]),
        Step::DivInPlace(a, b) => return at(a).div_(&at(b).exp()?).map(|()| vec![]),
        Step::Copy(a, b) => return at(a).copy_(at(b)).map(|()| vec![]),
        Step::Fill(a) => return at(a).fill_(0.5).map(|()| vec![]),
        Step::Tanh(a) => return at(a).tanh_().map(|()| vec![]),
        Step::Checkpoint(a, b) => {
            return autograd::checkpoint(&[at(a), at(b)], |x| {
                let product = x[0].mul(&x[1])?;
                product.select(0, 0)?.tanh_()?;
                Ok(vec![product])
            });
        }
    }])
}

fn is_refused(error: &TensorError) -> bool {
    matches!(error, TensorError::Autograd(AutogradError::Modified { .. }))
}

fn input(from: f64) -> Tensor {
    let values: Vec<f64> = (0..4).map(|at| from + 0.2 * f64::from(at)).collect();
    Tensor::from_slice(&values, &[2, 2]).unwrap().requires_grad_(true).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn gradients_are_what_differences_say(steps in prop::collection::vec(step(), 1..10), is_second in any::<bool>()) {
        let inputs = [input(0.3), input(-0.5)];
        let function = |x: &[Tensor]| run(&steps, x);
        let checked = if is_second {
            autograd::gradgradcheck(function, &inputs, Gradcheck::default())
        } else {
            autograd::gradcheck(function, &inputs, Gradcheck::default())
        };
        if let Err(error) = checked {
            prop_assert!(is_refused(&error), "{error}");
        }
    }
}
