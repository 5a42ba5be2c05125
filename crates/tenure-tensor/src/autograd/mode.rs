//! A thread's autograd settings: whether operations record a graph, and whether backward checks for NaN.

use std::marker::PhantomData;

use crate::scopes::Scopes;

thread_local! {
    static GRAD: Scopes<bool> = const { Scopes::new() };
    static ANOMALY: Scopes<()> = const { Scopes::new() };
}

/// A scope in which this thread's operations record a graph for backward, or do not. The latest scope that is alive
/// decides.
/// PyTorch's `set_grad_enabled`.
#[must_use = "it holds for as long as it lives"]
pub struct GradMode {
    scope: u64,
    /// A scope belongs to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl GradMode {
    /// Begins the scope. Operations in it record a graph if `is_enabled`.
    pub fn enter(is_enabled: bool) -> Self {
        Self { scope: Scopes::enter(&GRAD, is_enabled), thread: PhantomData }
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        Scopes::leave(&GRAD, self.scope);
    }
}

/// Returns whether operations of this thread record a graph for backward. PyTorch's `is_grad_enabled`.
pub fn is_grad_enabled() -> bool {
    Scopes::latest(&GRAD).unwrap_or(true)
}

/// Sets whether operations of this thread record a graph: until the innermost [`GradMode`] ends, or else until the next
/// call. PyTorch's `set_grad_enabled` called as a function.
///
/// ```
/// use tenure_tensor::autograd;
///
/// autograd::no_grad(|| {
///     autograd::set_grad_enabled(true);
///     assert!(autograd::is_grad_enabled());
/// });
/// autograd::set_grad_enabled(false);
/// assert!(!autograd::is_grad_enabled());
/// ```
pub fn set_grad_enabled(is_enabled: bool) {
    Scopes::replace(&GRAD, is_enabled);
}

/// Runs `body`, whose operations record no graph: their outputs require no gradient.
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

/// Runs `body`, whose operations record a graph for backward, also inside [`no_grad`].
pub fn with_grad<R>(body: impl FnOnce() -> R) -> R {
    let _mode = GradMode::enter(true);
    body()
}

/// A scope in which this thread's backward passes return an error if a gradient has a NaN, and nodes record the
/// backtrace of their operation for that error. Slow. PyTorch's `detect_anomaly`.
#[must_use = "it holds for as long as it lives"]
pub struct Anomaly {
    scope: u64,
    thread: PhantomData<*const ()>,
}

impl Anomaly {
    /// Begins the scope.
    pub fn detect() -> Self {
        Self { scope: Scopes::enter(&ANOMALY, ()), thread: PhantomData }
    }

    /// Returns whether this thread is in such a scope.
    pub(super) fn is_on() -> bool {
        Scopes::latest(&ANOMALY).is_some()
    }
}

impl Drop for Anomaly {
    fn drop(&mut self) {
        Scopes::leave(&ANOMALY, self.scope);
    }
}
