//! [`OnFailure`]: an adaptor that calls back when memory runs out, and tries again.

use crate::{Address, AllocError, Block, Request, Resource};

/// A callback for an out-of-memory error. Returns whether it freed anything, so that trying again makes sense. It is
/// called on the allocating thread with no lock held: it may free through any adaptor above or below.
pub type FailureCallback = Box<dyn Fn(&AllocError) -> bool + Send + Sync>;

/// An adaptor that calls back when memory runs out, and tries again as long as the callback says so.
pub struct OnFailure<R> {
    inner: R,
    retries: u32,
    callback: FailureCallback,
}

impl<R: Resource> OnFailure<R> {
    /// Calls `callback` when `inner` is out of memory, and tries again at most `retries` times a request.
    pub fn new(inner: R, retries: u32, callback: FailureCallback) -> Self {
        Self { inner, retries, callback }
    }

    /// Returns the resource below.
    pub fn inner(&self) -> &R {
        &self.inner
    }
}

impl<R: Resource> Resource for OnFailure<R> {
    /// # Errors
    /// The last out-of-memory error of the resource below, if the callback gave up or every retry was used. Any other
    /// error of it at once.
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        let mut result = self.inner.allocate(request);
        for _ in 0..self.retries {
            match &result {
                Err(error @ AllocError::OutOfMemory { .. }) if (self.callback)(error) => {
                    result = self.inner.allocate(request);
                }
                _ => break,
            }
        }
        result
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        self.inner.free(address)
    }
}
