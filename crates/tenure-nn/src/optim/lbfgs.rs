//! The L-BFGS optimizer (Liu and Nocedal, 1989).

use std::collections::VecDeque;

use tenure_core::Tag;
use tenure_tensor::autograd::no_grad;
use tenure_tensor::{Tensor, TensorError, ops};

use super::line_search::{Trial, strong_wolfe};
use super::not_negative;
use crate::{Parameter, Result, Source, StateError, purpose};

/// The least product of a step and its change of the gradient that enters the history.
const LEAST_CURVATURE: f64 = 1e-10;

/// The settings of [`Lbfgs`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LbfgsOptions {
    /// The learning rate: the length of a step in directions, or of the first try of a line search.
    pub lr: f64,
    /// The largest number of iterations in a step.
    pub max_iterations: usize,
    /// The number of evaluations after which a step ends; by default 5/4 of `max_iterations`.
    pub max_evaluations: Option<usize>,
    /// The largest absolute element of a gradient at which a step ends.
    pub tolerance_grad: f64,
    /// The change of the loss, or the largest change of an element, at which a step ends.
    pub tolerance_change: f64,
    /// The number of earlier iterations that the direction depends on. Each takes twice the parameters' memory.
    pub history_size: usize,
    /// Whether the length of each iteration is searched for, so that it fulfils the strong Wolfe conditions.
    pub strong_wolfe: bool,
}

/// The L-BFGS optimizer, a quasi-Newton method for functions without noise. PyTorch's `torch.optim.LBFGS`. A step
/// evaluates the function several times.
///
/// ```
/// use tenure_nn::Parameter;
/// use tenure_nn::optim::{Lbfgs, LbfgsOptions};
/// use tenure_tensor::Tensor;
///
/// let x = Parameter::new("x", Tensor::from_slice(&[4.0_f32], &[1])?)?;
/// let options = LbfgsOptions { strong_wolfe: true, ..LbfgsOptions::default() };
/// let mut optimizer = Lbfgs::new(vec![x.clone()], options);
/// optimizer.step(|| {
///     x.set_grad(None)?;
///     let loss = x.sub(1.0)?.square()?.sum_all()?;
///     loss.backward()?;
///     Ok(loss)
/// })?;
/// assert!((x.item::<f32>()? - 1.0).abs() < 1e-5);
/// # Ok::<(), tenure_nn::Error>(())
/// ```
pub struct Lbfgs {
    parameters: Vec<Parameter>,
    options: LbfgsOptions,
    state: LbfgsState,
}

/// All that an optimizer keeps from step to step.
#[derive(Default)]
struct LbfgsState {
    iterations: u64,
    evaluations: u64,
    last: Option<LastIteration>,
    /// Earlier iterations, oldest first.
    history: VecDeque<Correction>,
}

/// The last iteration: its direction, its length, and the gradient at its start.
struct LastIteration {
    direction: Tensor,
    length: f64,
    grad: Tensor,
}

/// The change of the gradient over a step.
struct Correction {
    grad_change: Tensor,
    step: Tensor,
    /// The product of both.
    curvature: f64,
    /// The scale of the inverse Hessian at this step.
    scale: f64,
}

impl Default for LbfgsOptions {
    fn default() -> Self {
        Self {
            lr: 1.0,
            max_iterations: 20,
            max_evaluations: None,
            tolerance_grad: 1e-7,
            tolerance_change: 1e-9,
            history_size: 100,
            strong_wolfe: false,
        }
    }
}

impl Lbfgs {
    /// Makes an optimizer of parameters, which must have one dtype and device.
    pub fn new(parameters: Vec<Parameter>, options: LbfgsOptions) -> Self {
        Self { parameters, options, state: LbfgsState::default() }
    }

    /// Replaces the options for the next steps, for example by others with a lower learning rate.
    pub fn set_options(&mut self, options: LbfgsOptions) {
        self.options = options;
    }

    /// Replaces the parameters by others with the same number of elements, for example after a move to another device.
    /// The state is kept.
    pub fn set_parameters(&mut self, parameters: Vec<Parameter>) {
        self.parameters = parameters;
    }

    /// Moves the parameters to a lower value of a function, and returns the first value. `closure` drops the gradients,
    /// computes the loss, calls its `backward`, and returns it.
    ///
    /// # Errors
    /// An option is invalid, or parameters differ in dtype or device: then the closure was not called. Errors of the
    /// closure; no memory.
    pub fn step(&mut self, mut closure: impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        self.check()?;
        let LbfgsOptions { lr, max_iterations, tolerance_grad, tolerance_change, .. } = self.options;
        let max_evaluations = self.options.max_evaluations.unwrap_or(max_iterations * 5 / 4);
        let first = closure()?;
        let mut loss = number(&first)?;
        let mut grad = self.grad()?;
        let mut evaluations = 1;
        self.state.evaluations += 1;
        if self.parameters.is_empty() || largest(&grad)? <= tolerance_grad {
            return Ok(first);
        }
        for iteration in 1..=max_iterations {
            let direction = no_grad(|| self.state.direction(&grad, self.options.history_size))?;
            let first_length =
                if self.state.last.is_none() { (1.0 / number(&grad.abs()?.sum_all()?)?).min(1.0) } else { 1.0 };
            let mut length = first_length * lr;
            let slope = dot(&grad, &direction)?;
            let before = loss;
            self.state.iterations += 1;
            self.state.last = Some(LastIteration { direction: direction.clone(), length, grad: grad.clone() });
            if slope > -tolerance_change {
                break;
            }
            let mut made = 0;
            if self.options.strong_wolfe {
                let start = Trial { at: 0.0, loss, slope, grad };
                let most = max_evaluations.saturating_sub(evaluations);
                let largest = largest(&direction)?;
                let (trial, count) =
                    strong_wolfe(|at| self.evaluate(&mut closure, &direction, at), &start, length, largest, most)?;
                made = count;
                Trial { at: length, loss, grad, .. } = trial;
                self.add(&direction, length)?;
            } else {
                self.add(&direction, length)?;
                if iteration < max_iterations {
                    loss = number(&closure()?)?;
                    grad = self.grad()?;
                    made = 1;
                }
            }
            evaluations += made;
            self.state.evaluations += made as u64;
            if let Some(last) = &mut self.state.last {
                last.length = length;
            }
            let is_over = iteration == max_iterations || evaluations >= max_evaluations;
            if is_over
                || largest(&grad)? <= tolerance_grad
                || largest(&direction)? * length.abs() <= tolerance_change
                || (loss - before).abs() < tolerance_change
            {
                break;
            }
        }
        Ok(first)
    }

    /// Returns the optimizer's state by name.
    ///
    /// # Errors
    /// No memory.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let LbfgsState { iterations, evaluations, last, history } = &self.state;
        let counts = [("n_iter", iterations), ("func_evals", evaluations)];
        let mut state = counts
            .into_iter()
            .map(|(name, count)| Ok((name, Tensor::from_slice(&[*count as i64], &[])?)))
            .collect::<Result<Vec<_>>>()?;
        if let Some(LastIteration { direction, length, grad }) = last {
            state.push(("d", direction.clone()));
            state.push(("t", Tensor::from_slice(&[*length], &[])?));
            state.push(("prev_flat_grad", grad.clone()));
        }
        if !history.is_empty() {
            let changes: Vec<&Tensor> = history.iter().map(|correction| &correction.grad_change).collect();
            let steps: Vec<&Tensor> = history.iter().map(|correction| &correction.step).collect();
            state.push(("old_dirs", ops::stack(&changes, 0)?));
            state.push(("old_stps", ops::stack(&steps, 0)?));
        }
        Ok(state.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect())
    }

    /// Resumes from a [`state`](Self::state) of the same parameters. Of a longer history, the newest part is taken.
    ///
    /// # Errors
    /// [`StateError`]: a tensor is missing, unknown, or has other sizes. Errors of the source. The optimizer is
    /// unchanged then.
    pub fn load(&mut self, source: &dyn Source) -> Result<()> {
        const COUNTS: [&str; 2] = ["n_iter", "func_evals"];
        const LAST: [&str; 3] = ["d", "t", "prev_flat_grad"];
        const HISTORY: [&str; 2] = ["old_dirs", "old_stps"];
        let names = source.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let has_history = HISTORY.iter().any(|name| names.contains(name));
        let mut expected = COUNTS.to_vec();
        if has_history || LAST.iter().any(|name| names.contains(name)) {
            expected.extend(LAST);
        }
        if has_history {
            expected.extend(HISTORY);
        }
        let missing = expected.iter().filter(|name| !names.contains(name)).map(|name| (*name).to_owned());
        let missing: Vec<String> = missing.collect();
        let unexpected: Vec<String> =
            names.iter().filter(|name| !expected.contains(name)).map(|name| (*name).to_owned()).collect();
        if !missing.is_empty() || !unexpected.is_empty() {
            return Err(StateError::Names { of: "optimizer", missing, unexpected }.into());
        }
        let mut state = LbfgsState { iterations: count(source, "n_iter")?, ..LbfgsState::default() };
        state.evaluations = count(source, "func_evals")?;
        if expected.contains(&"d") {
            let length = number(&source.tensor("t")?)?;
            state.last = Some(LastIteration {
                direction: self.vectors(source, "d", None)?,
                length,
                grad: self.vectors(source, "prev_flat_grad", None)?,
            });
        }
        if expected.contains(&"old_dirs") {
            let rows = source.sizes("old_dirs").and_then(|sizes| sizes.first().copied()).unwrap_or(0);
            let changes = self.vectors(source, "old_dirs", Some(rows))?;
            let steps = self.vectors(source, "old_stps", Some(rows))?;
            for row in rows.saturating_sub(self.options.history_size)..rows {
                let [grad_change, step] = [&changes, &steps].map(|rows| rows.select(0, row as isize)?.copy());
                state.history.push_back(Correction::new(grad_change?, step?)?);
            }
        }
        self.state = state;
        Ok(())
    }

    /// Reads a vector of all parameters' elements, or `rows` of them.
    fn vectors(&self, source: &dyn Source, name: &str, rows: Option<usize>) -> Result<Tensor> {
        let elements = self.parameters.iter().map(|parameter| parameter.numel()).sum();
        let expected: Vec<usize> = rows.into_iter().chain([elements]).collect();
        let value = source.tensor(name)?;
        if value.sizes() != expected {
            let found = value.sizes().to_vec();
            return Err(StateError::Sizes { of: "optimizer", name: name.to_owned(), expected, found, more: 0 }.into());
        }
        let Some(first) = self.parameters.first() else { return Ok(value) };
        let _purpose = purpose::enter(Tag::OptimizerState, "lbfgs", name);
        Ok(Tensor::empty(&expected, first.dtype(), first.device()).and_then(|own| own.copy_(&value).map(|()| own))?)
    }

    /// Checks the options and the parameters.
    fn check(&self) -> Result<()> {
        let LbfgsOptions { lr, tolerance_grad, tolerance_change, history_size, .. } = self.options;
        let tolerances = [("tolerance_grad", tolerance_grad), ("tolerance_change", tolerance_change)];
        not_negative("lbfgs", [("the learning rate", lr), tolerances[0], tolerances[1]])?;
        if history_size == 0 {
            return Err(TensorError::argument("lbfgs", "history_size is 0: a number from 1 on is expected").into());
        }
        for pair in self.parameters.windows(2) {
            if (pair[0].dtype(), pair[0].device()) != (pair[1].dtype(), pair[1].device()) {
                let names = [pair[0].name(), pair[1].name()];
                let reason = format!("{} and {} differ in dtype or device: all must have the same", names[0], names[1]);
                return Err(TensorError::argument("lbfgs", reason).into());
            }
        }
        Ok(())
    }

    /// Returns the gradients of all parameters as one vector.
    fn grad(&self) -> Result<Tensor> {
        no_grad(|| {
            let grads = self.parameters.iter().map(|parameter| match parameter.grad() {
                Some(grad) => grad.reshape(&[-1]),
                None => Tensor::zeros(&[parameter.numel()], parameter.dtype(), parameter.device()),
            });
            let grads: Vec<Tensor> = grads.collect::<tenure_tensor::Result<_>>()?;
            // One gradient would be a view, which the closure may write to.
            if let [grad] = &grads[..] {
                return Ok(grad.copy()?);
            }
            match grads.is_empty() {
                true => Ok(Tensor::zeros(&[0], tenure_tensor::DType::F32, tenure_tensor::Device::CPU)?),
                false => Ok(ops::cat(&grads.iter().collect::<Vec<_>>(), 0)?),
            }
        })
    }

    /// Moves all parameters by `length` times a direction.
    fn add(&self, direction: &Tensor, length: f64) -> Result<()> {
        no_grad(|| {
            let mut start = 0;
            for parameter in &self.parameters {
                let part = direction.narrow(0, start, parameter.numel())?.view_as(parameter)?;
                parameter.add_scaled_(&part, length)?;
                start += parameter.numel();
            }
            Ok(())
        })
    }

    /// Evaluates the function at a place on a line, and moves the parameters back.
    fn evaluate(&self, closure: &mut impl FnMut() -> Result<Tensor>, direction: &Tensor, at: f64) -> Result<Trial> {
        let before = self.parameters.iter().map(|parameter| parameter.copy());
        let before: Vec<Tensor> = no_grad(|| before.collect::<tenure_tensor::Result<_>>())?;
        let moved = self.add(direction, at).and_then(|()| Ok((number(&closure()?)?, self.grad()?)));
        no_grad(|| self.parameters.iter().zip(&before).try_for_each(|(parameter, before)| parameter.copy_(before)))?;
        let (loss, grad) = moved?;
        Ok(Trial { at, loss, slope: dot(&grad, direction)?, grad })
    }
}

impl LbfgsState {
    /// Adds the last iteration to the history, and returns the next direction: the gradient times the negative
    /// approximate inverse of the Hessian.
    fn direction(&mut self, grad: &Tensor, history_size: usize) -> Result<Tensor> {
        let _purpose = purpose::enter(Tag::OptimizerState, "lbfgs", "history");
        if let Some(last) = &self.last {
            let correction = Correction::new(grad.sub(&last.grad)?, last.direction.mul(last.length)?)?;
            if correction.curvature > LEAST_CURVATURE {
                if self.history.len() == history_size {
                    self.history.pop_front();
                }
                self.history.push_back(correction);
            }
        }
        let direction = grad.neg()?;
        let mut shares = Vec::with_capacity(self.history.len());
        for Correction { grad_change, step, curvature, .. } in self.history.iter().rev() {
            let share = dot(step, &direction)? / curvature;
            direction.add_scaled_(grad_change, -share)?;
            shares.push(share);
        }
        if let Some(newest) = self.history.back() {
            direction.mul_(newest.scale)?;
        }
        for (Correction { grad_change, step, curvature, .. }, share) in
            self.history.iter().zip(shares.into_iter().rev())
        {
            direction.add_scaled_(step, share - dot(grad_change, &direction)? / curvature)?;
        }
        Ok(direction)
    }
}

impl Correction {
    fn new(grad_change: Tensor, step: Tensor) -> Result<Self> {
        let curvature = dot(&grad_change, &step)?;
        let scale = curvature / dot(&grad_change, &grad_change)?;
        Ok(Self { grad_change, step, curvature, scale })
    }
}

/// Reads a count.
fn count(source: &dyn Source, name: &str) -> Result<u64> {
    let found = source.tensor(name)?.item_scalar()?.to_i64();
    u64::try_from(found).map_err(|_| {
        TensorError::argument("Lbfgs::load", format!("{name} is {found}: a number from 0 on is expected")).into()
    })
}

fn number(tensor: &Tensor) -> Result<f64> {
    Ok(tensor.item_scalar()?.to_f64())
}

fn dot(left: &Tensor, right: &Tensor) -> Result<f64> {
    no_grad(|| number(&left.dot(right)?))
}

/// Returns the largest absolute element.
fn largest(vector: &Tensor) -> Result<f64> {
    no_grad(|| number(&vector.abs()?.amax(&[], false)?))
}
