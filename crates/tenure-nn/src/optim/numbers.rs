//! The numbers of a step, also of one that is captured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tenure_tensor::cuda::varying;
use tenure_tensor::{Device, Result, Tensor, TensorError};

use super::{Rule, not_negative};

/// The numbers of a [`Rule`] for one step.
#[derive(Clone, Debug)]
pub struct Numbers {
    values: Vec<f64>,
    /// The tensor that holds the numbers' bits for each replay; only in a capture.
    words: Option<Tensor>,
}

/// A number, such as a learning rate, that replays of a captured step read at their own time.
#[derive(Clone, Debug)]
pub(super) struct Rate(Arc<AtomicU64>);

/// A count of the steps made.
#[derive(Debug)]
pub(super) struct Steps(Arc<AtomicU64>);

impl Numbers {
    /// Makes numbers of these values.
    pub fn new(values: Vec<f64>) -> Self {
        Self { values, words: None }
    }

    /// Makes numbers that each replay of a capture computes anew. A replay counts as a step of all `members`.
    pub(super) fn captured(
        rule: &Arc<dyn Rule>,
        rates: [Rate; 2],
        device: Device,
        members: Vec<Weak<AtomicU64>>,
    ) -> Result<Self> {
        if device.is_cpu() {
            let reason = "parameters on the CPU cannot be stepped in a capture: only what a device does is captured";
            return Err(TensorError::argument("Optimizer::step", reason));
        }
        let values = rule.numbers(1, 0.0);
        let rule = Arc::clone(rule);
        let counted = members.clone();
        let words = varying(
            values.len(),
            move |words| {
                let lr = rates.iter().map(Rate::get).product();
                not_negative("Optimizer::step", [("the learning rate", lr)])?;
                let numbers = rule.numbers(count(&members)?, lr);
                words.iter_mut().zip(numbers).for_each(|(word, number)| *word = number.to_bits());
                Ok(())
            },
            move || uncount(&counted),
        )?;
        Ok(Self { values, words })
    }

    /// Returns the numbers for a CPU kernel.
    ///
    /// # Errors
    /// There are not `N` numbers.
    pub fn of<C: num_traits::Float, const N: usize>(&self) -> Result<[C; N]> {
        let values: [f64; N] = self.values.as_slice().try_into().map_err(|_| {
            let reason = format!("a rule has {} numbers, and its kernel takes {N}", self.values.len());
            TensorError::argument("Optimizer::step", reason)
        })?;
        Ok(values.map(|value| C::from(value).unwrap_or_else(C::nan)))
    }

    /// Returns the numbers. In a capture the values have no meaning.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the tensor of the numbers' bits that each replay rewrites; `None` outside of a capture.
    pub(super) fn words(&self) -> Option<&Tensor> {
        self.words.as_ref()
    }

    /// Reads numbers from their bits.
    pub(super) fn read(words: &Tensor) -> Result<Self> {
        let words = words.to_vec::<i64>()?;
        Ok(Self::new(words.into_iter().map(|bits| f64::from_bits(bits as u64)).collect()))
    }
}

/// Counts one more step of members that are stepped together, and returns its number.
fn count(members: &[Weak<AtomicU64>]) -> Result<u64> {
    let steps = members.iter().map(Weak::upgrade).collect::<Option<Vec<_>>>().ok_or_else(|| {
        let reason = "the replayed step is of an optimizer that was loaded since, or is gone: capture the step again";
        TensorError::argument("Optimizer::step", reason)
    })?;
    let made = steps.first().map_or(0, |steps| steps.load(Ordering::Relaxed));
    if steps.iter().any(|steps| steps.load(Ordering::Relaxed) != made) {
        let reason = "parameters that were captured together were stepped apart since: capture the step again";
        return Err(TensorError::argument("Optimizer::step", reason));
    }
    steps.iter().for_each(|steps| steps.store(made + 1, Ordering::Relaxed));
    Ok(made + 1)
}

/// Undoes [`count`].
fn uncount(members: &[Weak<AtomicU64>]) {
    for steps in members.iter().filter_map(Weak::upgrade) {
        steps.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rate {
    pub(super) fn new(value: f64) -> Self {
        Self(Arc::new(AtomicU64::new(value.to_bits())))
    }

    pub(super) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl Steps {
    pub(super) fn new(made: u64) -> Self {
        Self(Arc::new(AtomicU64::new(made)))
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a weak handle for replays. It ends when the optimizer replaces these steps.
    pub(super) fn watch(&self) -> Weak<AtomicU64> {
        Arc::downgrade(&self.0)
    }
}
