//! The Muon rule: momentum whose matrices are made orthogonal (Jordan et al., 2024).

use tenure_tensor::{DType, Float, Kernel, Result, Tensor, TensorError};

use super::{Numbers, Rule, Slot, StepKernel, Stepped, not_negative};

/// The kernels of [`Muon`].
pub static MUON: Kernel<StepKernel> = kernels!("muon", muon, muon);

/// The Muon rule, for matrices. PyTorch's `torch.optim.Muon`. Biases, embeddings and other parameters belong in a group
/// with another rule, such as [`Adam::w`](super::Adam::w).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// The weight decay, which is separate from the gradient.
    pub weight_decay: f64,
    /// The decay factor of the gradient's average.
    pub momentum: f64,
    /// Whether the gradient is mixed with its average once more.
    pub nesterov: bool,
    /// The coefficients of the Newton-Schulz iteration, a polynomial of x, x³ and x⁵.
    pub coefficients: [f64; 3],
    /// The least norm that a matrix is divided by before the iteration.
    pub eps: f64,
    /// The number of Newton-Schulz iterations, below 100.
    pub iterations: u32,
    /// The factor of the learning rate.
    pub lr_adjustment: LrAdjustment,
}

/// The factor by which [`Muon`] multiplies the learning rate for a matrix of `rows` and `columns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LrAdjustment {
    /// √max(1, `rows` / `columns`) (Jordan et al., 2024). PyTorch's `"original"`.
    #[default]
    Original,
    /// 0.2 √max(`rows`, `columns`), so that updates are as large as AdamW's (Liu et al., 2025). PyTorch's
    /// `"match_rms_adamw"`.
    MatchRmsAdamW,
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            weight_decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            coefficients: [3.4445, -4.775, 2.0315],
            eps: 1e-7,
            iterations: 5,
            lr_adjustment: LrAdjustment::Original,
        }
    }
}

impl Rule for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn check(&self) -> Result<()> {
        let Self { weight_decay, momentum, coefficients, eps, iterations, .. } = *self;
        not_negative("muon", [("weight_decay", weight_decay), ("momentum", momentum), ("eps", eps)])?;
        if coefficients.iter().any(|coefficient| !coefficient.is_finite()) {
            let reason = format!("the coefficients are {coefficients:?}: finite numbers are expected");
            return Err(TensorError::argument("muon", reason));
        }
        if iterations >= 100 {
            let reason = format!("there are {iterations} iterations: a number below 100 is expected");
            return Err(TensorError::argument("muon", reason));
        }
        Ok(())
    }

    fn slots(&self, sizes: &[usize]) -> Vec<Slot> {
        vec![Slot::new("momentum_buffer", 0.0, sizes)]
    }

    fn is_elementwise(&self) -> bool {
        false
    }

    fn numbers(&self, _step: u64, lr: f64) -> Vec<f64> {
        let Self { weight_decay, momentum, nesterov, coefficients: [a, b, c], eps, iterations, .. } = *self;
        let of_average = if nesterov { momentum } else { 1.0 };
        let matches_adamw = f64::from(u8::from(self.lr_adjustment == LrAdjustment::MatchRmsAdamW));
        let iterations = f64::from(iterations);
        vec![lr, 1.0 - lr * weight_decay, 1.0 - momentum, of_average, a, b, c, eps, iterations, matches_adamw]
    }

    fn kernel(&self) -> &'static Kernel<StepKernel> {
        &MUON
    }
}

fn muon<T: Float>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [lr, shrink, share, of_average, a, b, c, eps, iterations, matches_adamw]: [f64; 10] = numbers.of()?;
    if let Some(other) = parameters.iter().find(|stepped| stepped.parameter.rank() != 2) {
        let reason = format!(
            "a parameter has sizes {:?}, and only matrices are stepped: put it in a group with another rule",
            other.parameter.sizes()
        );
        return Err(TensorError::argument("muon", reason));
    }
    for Stepped { parameter, grad, slots } in parameters {
        let [average] = slots else { unreachable!("muon has one slot") };
        let [rows, columns] = [0, 1].map(|dim| parameter.sizes()[dim] as f64);
        let adjustment =
            if matches_adamw == 1.0 { 0.2 * rows.max(columns).sqrt() } else { (rows / columns).max(1.0).sqrt() };
        average.lerp_(grad, share)?;
        let update = orthogonal(&grad.lerp(average, of_average)?, [a, b, c], eps, iterations as u32)?;
        parameter.mul_(shrink)?;
        parameter.sub_(&update.to_dtype(T::DTYPE)?.mul(lr * adjustment)?)?;
    }
    Ok(())
}

/// Returns a matrix with about the same singular vectors and singular values near 1, by Newton-Schulz iterations in
/// bfloat16.
fn orthogonal(matrix: &Tensor, [a, b, c]: [f64; 3], eps: f64, iterations: u32) -> Result<Tensor> {
    let is_tall = matrix.sizes()[0] > matrix.sizes()[1];
    let matrix = matrix.to_dtype(DType::BF16)?;
    let wide = if is_tall { matrix.t()? } else { matrix };
    let mut found = wide.div(&wide.norm(2.0, &[], false)?.clamp_min(eps)?)?;
    for _ in 0..iterations {
        let gram = found.matmul(&found.t()?)?;
        let polynomial = gram.addmm(&gram, &gram, b, c)?;
        found = found.addmm(&polynomial, &found, a, 1.0)?;
    }
    if is_tall { found.t() } else { Ok(found) }
}
