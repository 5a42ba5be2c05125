//! What a thread allocates for, as Python says it: module hooks enter and leave purposes around calls, and blocks whose
//! purpose is known only later get it then.
//!
//! Hooks run on every call of every module. So each function here takes numbers, of tags and of interned keys, and costs
//! little more than the call of it. Threads have purposes of their own: a hook speaks for the thread that it runs on.

use std::cell::RefCell;

use pyo3::prelude::*;
use tenure::core::{Key, KeyId, Purpose, Span, Tag};
use tenure_device::memory;

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

/// A purpose that was entered and not left.
struct Scope {
    /// Chosen by who entered it, and told again when leaving.
    token: u64,
    /// With it, the scope ends without being left.
    span: Span,
    /// What was before.
    previous: (Tag, KeyId, Span),
}

/// The names of tags; a tag's number is its place.
#[pyfunction]
pub(crate) fn tags() -> Vec<&'static str> {
    Tag::ALL.iter().map(|tag| tag.name()).collect()
}

/// The number of a key. It is the same for equal keys, and never 0, which is no key.
#[pyfunction]
pub(crate) fn intern_key(module: String, op: String, role: String, occurrence: u32) -> u32 {
    KeyId::intern(Key { module, op, role, occurrence }).to_raw()
}

/// The module of the key of a number; empty if it has none.
#[pyfunction]
pub(crate) fn module_of_key(key: u32) -> String {
    KeyId::from_raw(key).key().map_or_else(String::new, |key| key.module.clone())
}

/// The number of a span that begins; 0 is the one that never ends.
#[pyfunction]
pub(crate) fn begin_span() -> u64 {
    Span::begin().to_raw()
}

/// Ends a span: no thread has a purpose any longer that it was given for the span.
#[pyfunction]
pub(crate) fn end_span(span: u64) {
    Span::from_raw(span).end();
}

/// This thread allocates for that from now on, until the scope of this token is left or the span ends.
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

/// Goes back to what was before the innermost scope of this token, and forgets those entered in it: whoever should have
/// left them was interrupted. Without such a scope, nothing happens.
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

/// This thread allocates for that until something else is said, or the span ends: where nobody tells when it ends.
/// Returns what was before, to be set again.
#[pyfunction]
pub(crate) fn set_purpose(tag: u8, key: u32, span: u64) -> (u8, u32, u64) {
    let (tag, key, span) = Purpose::replace(tag_of(tag), KeyId::from_raw(key), Span::from_raw(span));
    (tag as u8, key.to_raw(), span.to_raw())
}

/// The numbers of the tag and the key that this thread allocates for.
#[pyfunction]
pub(crate) fn current_purpose() -> (u8, u32) {
    let (tag, key) = Purpose::current();
    (tag as u8, key.to_raw())
}

/// Says anew what the block at an address is for. False if it is none of Tenure's, or was freed.
#[pyfunction]
pub(crate) fn retag(py: Python<'_>, device: usize, address: u64, tag: u8, key: u32) -> bool {
    let Some(memory) = memory::installed(device) else { return false };
    // The allocator's locks may be held by a thread that waits for Python.
    py.detach(|| memory.allocator().retag(address, tag_of(tag), KeyId::from_raw(key)).is_ok())
}

/// The tag of a number.
pub(crate) fn tag_of(number: u8) -> Tag {
    Tag::ALL.get(usize::from(number)).copied().unwrap_or_default()
}
