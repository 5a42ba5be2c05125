//! Fits a parabola to points by gradient descent, with tensors and autograd alone.
//!
//! `cargo run --release -p tenure --example 01_autograd`

use tenure::prelude::*;

fn main() -> Result<(), tenure::Error> {
    let x = Tensor::from_slice(&[-2.0_f32, -1.0, 0.0, 1.0, 2.0], &[5])?;
    let y = x.mul(&x)?.mul(3.0)?.sub(1.0)?; // 3 x² - 1

    let mut weights = Tensor::zeros(&[2], DType::F32, Device::CPU)?.requires_grad_(true)?;
    for step in 0..=200 {
        let fitted = x.mul(&x)?.mul(&weights.select(0, 0)?)?.add(&weights.select(0, 1)?)?;
        let error = fitted.sub(&y)?;
        let loss = error.mul(&error)?.mean_all()?;
        loss.backward()?;
        let gradient = weights.grad().expect("backward gives the leaf a gradient");
        // Without a graph, so that the new weights are a leaf again.
        weights = no_grad(|| weights.sub(&gradient.mul(0.05)?))?.detach().requires_grad_(true)?;
        if step % 50 == 0 {
            println!("step {step:3}: loss {:.6}, weights {:?}", loss.item::<f32>()?, weights.to_vec::<f32>()?);
        }
    }
    Ok(())
}
