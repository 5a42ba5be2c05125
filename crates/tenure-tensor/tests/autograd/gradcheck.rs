//! `gradcheck` and `gradgradcheck`, on right and wrong formulas.

use tenure_tensor::autograd::{Context, Gradcheck, attach, gradcheck, gradgradcheck, no_grad};
use tenure_tensor::{DType, Device, Result, Tensor};

/// Computes x³ with wrong factors: `first` in the gradient, `second` in the gradient's gradient.
fn cube(x: &Tensor, first: f64, second: f64) -> Result<Tensor> {
    let cubed = no_grad(|| x.mul(x)?.mul(x))?;
    attach(cubed, "cube", &[x], |saver| {
        let x = saver.save(x)?;
        Ok(move |context: &Context<'_>| {
            let x = context.unpack(x)?;
            // Only the derivative of the slope has the factor.
            let slope = x.mul(&x)?.mul(3.0 * second)?;
            let shift = slope.detach().mul(1.0 - 1.0 / second)?;
            Ok([Some(context.grad(0)?.mul(&slope.sub(&shift)?.mul(first)?)?)].into_iter().collect())
        })
    })
}

fn input() -> Tensor {
    Tensor::from_slice(&[0.5, -1.0, 2.0, 1.5], &[2, 2]).unwrap().requires_grad_(true).unwrap()
}

#[test]
fn right_formulas_pass() {
    for check in [gradcheck, gradgradcheck] {
        check(|x: &[Tensor]| Ok(vec![cube(&x[0].transpose(0, 1)?, 1.0, 1.0)?]), &[input()], Gradcheck::default())
            .unwrap();
    }
}

#[test]
fn a_wrong_formula_is_told_where() {
    let error = gradcheck(|x| Ok(vec![cube(&x[0], 1.1, 1.0)?]), &[input()], Gradcheck::default());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("output 0 at [0, 0] with respect to input 0 at [0, 0]"), "{error}");
    assert!(error.contains("0.825") && error.contains("0.7"), "{error}");
}

#[test]
fn a_formula_with_a_wrong_derivative_fails_the_second_time() {
    fn wrong(x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![cube(&x[0], 1.0, 2.0)?])
    }

    gradcheck(wrong, &[input()], Gradcheck::default()).unwrap();
    gradgradcheck(wrong, &[input()], Gradcheck::default()).unwrap_err();
}

#[test]
fn narrow_floats_are_refused() {
    let x = Tensor::ones(&[1], DType::F32, Device::CPU).unwrap().requires_grad_(true).unwrap();
    let error = gradcheck(|x| Ok(x.to_vec()), &[x], Gradcheck::default()).unwrap_err().to_string();
    assert!(error.contains("float64"), "{error}");
}
