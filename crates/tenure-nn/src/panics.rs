//! Conversion of panics into errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may panic. The error is the panic's message.
pub(crate) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("no message").to_owned()
    })
}
