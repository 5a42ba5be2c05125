//! The purpose that a thread allocates for, as Python sets it. Module hooks enter and leave purposes around calls;
//! blocks whose purpose is known only later are tagged again then.
//!
//! Hooks run at every call of every module. Therefore each function here takes numbers (of tags and interned keys) and
//! costs little more than the call itself. Each thread has its own purposes: a hook sets that of the thread it runs on.

use std::cell::RefCell;

use pyo3::prelude::*;
use tenure::core::{Key, KeyId, Purpose, Span, Tag};
use tenure_device::memory;

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

/// A purpose that was entered and not left.
struct Scope {
    /// A number that the caller chose on entering, and passes again on leaving.
    token: u64,
    /// The span of the scope. When it is over, the scope ends without being left.
    span: Span,
    /// The purpose before the scope.
    previous: (Tag, KeyId, Span),
}

/// Returns the names of all tags. A tag's number is its index.
#[pyfunction]
pub(crate) fn tags() -> Vec<&'static str> {
    Tag::ALL.iter().map(|tag| tag.name()).collect()
}

/// Returns the number of a key. Equal keys have the same number. It is never 0, which means no key.
#[pyfunction]
pub(crate) fn intern_key(module: String, op: String, role: String, occurrence: u32) -> u32 {
    KeyId::intern(Key { module, op, role, occurrence }).to_raw()
}

/// Returns the module in the key with this number; empty if there is none.
#[pyfunction]
pub(crate) fn module_of_key(key: u32) -> String {
    KeyId::from_raw(key).key().map_or_else(String::new, |key| key.module.clone())
}

/// Begins a span and returns its number. Span 0 never ends.
#[pyfunction]
pub(crate) fn begin_span() -> u64 {
    Span::begin().to_raw()
}

/// Ends a span. Purposes that were set for the span end with it, on all threads.
#[pyfunction]
pub(crate) fn end_span(span: u64) {
    Span::from_raw(span).end();
}

/// Sets this thread's purpose until the scope of this token is left or the span ends.
#[pyfunction]
#[pyo3(signature = (token, tag, key, span = 0))]
pub(crate) fn enter_purpose(token: u64, tag: u8, key: u32, span: u64) {
    let span = Span::from_raw(span);
    SCOPES.with_borrow_mut(|scopes| {
        while let Some(scope) = scopes.pop_if(|scope| scope.span.is_over()) {
            let (tag, key, span) = scope.previous;
            Purpose::replace(tag, key, span);
        }
        let previous = Purpose::replace(tag_of(tag), KeyId::from_raw(key), span);
        scopes.push(Scope { token, span, previous });
    });
}

/// Restores the purpose from before the innermost scope of this token, and drops the scopes entered inside it: the code
/// that should have left them was interrupted. Does nothing if there is no such scope.
#[pyfunction]
pub(crate) fn leave_purpose(token: u64) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(at) = scopes.iter().rposition(|scope| scope.token == token) {
            let (tag, key, span) = scopes[at].previous;
            Purpose::replace(tag, key, span);
            scopes.truncate(at);
        }
    });
}

/// Sets this thread's purpose until it is set again or the span ends, where no call marks the end. Returns the purpose
/// before, so that the caller can restore it.
#[pyfunction]
pub(crate) fn set_purpose(tag: u8, key: u32, span: u64) -> (u8, u32, u64) {
    let (tag, key, span) = Purpose::replace(tag_of(tag), KeyId::from_raw(key), Span::from_raw(span));
    (tag as u8, key.to_raw(), span.to_raw())
}

/// Returns the numbers of the tag and the key that this thread allocates for.
#[pyfunction]
pub(crate) fn current_purpose() -> (u8, u32) {
    let (tag, key) = Purpose::current();
    (tag as u8, key.to_raw())
}

/// Changes the purpose of the block at an address. Returns false if Tenure has no block there, or it was freed.
#[pyfunction]
pub(crate) fn retag(py: Python<'_>, device: usize, address: u64, tag: u8, key: u32) -> bool {
    let Some(memory) = memory::installed(device) else { return false };
    // A thread that holds the allocator's locks may be waiting for the GIL.
    py.detach(|| memory.allocator().retag(address, tag_of(tag), KeyId::from_raw(key)).is_ok())
}

/// Returns the tag with this number.
pub(crate) fn tag_of(number: u8) -> Tag {
    Tag::ALL.get(usize::from(number)).copied().unwrap_or_default()
}
