//! What a thread's operations leave behind.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static GRAD: Cell<bool> = const { Cell::new(true) };
    static ANOMALY: Cell<bool> = const { Cell::new(false) };
}

/// Whether operations of this thread are differentiated, while it lives. PyTorch's `set_grad_enabled`.
#[must_use = "it holds for as long as it lives"]
pub struct GradMode {
    previous: bool,
    /// It belongs to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl GradMode {
    /// Turns differentiation on or off.
    pub fn enter(is_enabled: bool) -> Self {
        Self { previous: GRAD.replace(is_enabled), thread: PhantomData }
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        GRAD.set(self.previous);
    }
}

/// Whether operations of this thread are differentiated.
pub fn is_grad_enabled() -> bool {
    GRAD.get()
}

/// Runs `body` without differentiating what it does.
///
/// ```
/// use tenure_tensor::{Tensor, autograd};
///
/// let x = Tensor::from_slice(&[1.0_f32], &[1])?.requires_grad_(true)?;
/// assert!(!autograd::no_grad(|| x.mul(2.0))?.requires_grad());
/// assert!(x.mul(2.0)?.requires_grad());
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
pub fn no_grad<R>(body: impl FnOnce() -> R) -> R {
    let _mode = GradMode::enter(false);
    body()
}

/// Runs `body` and differentiates what it does, also inside [`no_grad`].
pub fn with_grad<R>(body: impl FnOnce() -> R) -> R {
    let _mode = GradMode::enter(true);
    body()
}

/// While it lives, gradients of this thread's backward passes are looked at for values that are no numbers, and nodes
/// remember where they were made. PyTorch's `detect_anomaly`. Slow.
#[must_use = "it holds for as long as it lives"]
pub struct Anomaly {
    previous: bool,
    thread: PhantomData<*const ()>,
}

impl Anomaly {
    /// Begins to look.
    pub fn detect() -> Self {
        Self { previous: ANOMALY.replace(true), thread: PhantomData }
    }

    /// Whether this thread looks.
    pub(super) fn is_on() -> bool {
        ANOMALY.get()
    }
}

impl Drop for Anomaly {
    fn drop(&mut self) {
        ANOMALY.set(self.previous);
    }
}
