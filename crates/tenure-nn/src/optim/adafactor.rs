//! The Adafactor rule (Shazeer and Stern, 2018).

use tenure_tensor::{DType, Float, Kernel, Result, Tensor, TensorError};

use super::{Numbers, Rule, Slot, StepKernel, Stepped, compute_dtype, not_negative};

/// The kernels of [`Adafactor`].
pub static ADAFACTOR: Kernel<StepKernel> = kernels!("adafactor", adafactor, adafactor);

/// The Adafactor rule. PyTorch's `torch.optim.Adafactor`. For a parameter of two or more dimensions it keeps the
/// average squares of the gradient's rows and columns, over the last two dimensions, rather than of each element. The
/// learning rate is an upper limit of the relative step size, which falls as the square root of the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// The exponent of the step number in the share that a new square has in the average; not positive.
    pub beta2_decay: f64,
    /// The least root of an average square; by default the machine epsilon of the parameter's dtype.
    pub eps1: Option<f64>,
    /// The least root mean square of a parameter that the step is relative to.
    pub eps2: f64,
    /// The root mean square of an update above which the update is scaled down to it; at least 1.
    pub d: f64,
    /// The weight decay, which is separate from the gradient.
    pub weight_decay: f64,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self { beta2_decay: -0.8, eps1: None, eps2: 1e-3, d: 1.0, weight_decay: 0.0 }
    }
}

impl Rule for Adafactor {
    fn name(&self) -> &'static str {
        "adafactor"
    }

    fn check(&self) -> Result<()> {
        let Self { beta2_decay, eps1, eps2, d, weight_decay } = *self;
        let eps1 = ("eps1", eps1.unwrap_or(0.0));
        not_negative("adafactor", [eps1, ("eps2", eps2), ("weight_decay", weight_decay)])?;
        if !beta2_decay.is_finite() || beta2_decay > 0.0 {
            let reason = format!("beta2_decay is {beta2_decay}: a number up to 0 is expected");
            return Err(TensorError::argument("adafactor", reason));
        }
        if !d.is_finite() || d < 1.0 {
            return Err(TensorError::argument("adafactor", format!("d is {d}: a number from 1 on is expected")));
        }
        Ok(())
    }

    fn slots(&self, sizes: &[usize]) -> Vec<Slot> {
        let [.., rows, columns] = sizes else { return vec![Slot::new("variance", 0.0, sizes)] };
        let outer = &sizes[..sizes.len() - 2];
        let row = [outer, &[*rows, 1]].concat();
        let column = [outer, &[1, *columns]].concat();
        vec![Slot::new("row_var", 0.0, &row), Slot::new("col_var", 0.0, &column)]
    }

    fn is_elementwise(&self) -> bool {
        false
    }

    fn numbers(&self, step: u64, lr: f64) -> Vec<f64> {
        let Self { beta2_decay, eps1, eps2, d, weight_decay } = *self;
        let step = step as f64;
        let relative = lr.min(1.0 / step.sqrt());
        // The kernel knows the dtype, whose machine epsilon replaces NaN.
        vec![1.0 - lr * weight_decay, step.powf(beta2_decay), relative, eps1.unwrap_or(f64::NAN), eps2, d]
    }

    fn kernel(&self) -> &'static Kernel<StepKernel> {
        &ADAFACTOR
    }
}

fn adafactor<T: Float>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [shrink, share, relative, eps1, eps2, d]: [f64; 6] = numbers.of()?;
    let eps1 = if eps1.is_nan() { machine_epsilon(T::DTYPE) } else { eps1 };
    let dtype = compute_dtype(T::DTYPE);
    for stepped in parameters.iter().filter(|stepped| stepped.parameter.numel() > 0) {
        let parameter = stepped.parameter;
        let root = (parameter.numel() as f64).sqrt();
        let size = parameter.to_dtype(dtype)?.norm(2.0, &[], false)?.div(root)?;
        let size = size.clamp_min(eps2)?.mul(relative)?;
        let grad = stepped.grad.to_dtype(dtype)?;
        let variance = variance(stepped, &grad, share, eps1)?;
        let update = variance.clamp_min(eps1 * eps1)?.rsqrt()?.mul(&grad)?;
        let excess = update.norm(2.0, &[], false)?.div(root * d)?.clamp_min(1.0)?;
        if shrink != 1.0 {
            parameter.mul_(shrink)?;
        }
        parameter.sub_(&update.mul(&size.div(&excess)?)?)?;
    }
    Ok(())
}

/// Updates the average squares, and returns an estimate of each element's.
fn variance(stepped: &Stepped<'_>, grad: &Tensor, share: f64, eps1: f64) -> Result<Tensor> {
    let square = grad.square()?;
    let [rows, columns] = stepped.slots else {
        let [variance] = stepped.slots else { unreachable!("a vector has one slot") };
        variance.lerp_(&square.to_dtype(variance.dtype())?, share)?;
        return variance.to_dtype(grad.dtype());
    };
    rows.lerp_(&square.mean(&[-1], true)?.to_dtype(rows.dtype())?, share)?;
    columns.lerp_(&square.mean(&[-2], true)?.to_dtype(columns.dtype())?, share)?;
    let rows = rows.to_dtype(grad.dtype())?;
    let mean = rows.mean(&[-2], true)?.clamp_min(eps1)?;
    rows.mul(&columns.to_dtype(grad.dtype())?)?.div(&mean)
}

/// Returns the difference between 1 and the next larger number.
fn machine_epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::EPSILON.to_f64(),
        DType::BF16 => half::bf16::EPSILON.to_f64(),
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}
