//! Contexts and notes: facts about a call that the program knows and the allocator does not.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    /// The context of this thread.
    static CONTEXT: RefCell<Option<HistoryContext>> = const { RefCell::new(None) };
    /// The note of this thread.
    static NOTE: RefCell<Option<HistoryContext>> = const { RefCell::new(None) };
}

/// A value that the program wants kept with an event or a block, such as a stack trace (PyTorch's `GatheredContext`).
///
/// The allocator may drop the last reference to a context with its locks held, so dropping the value must not call the
/// allocator.
///
/// ```
/// use tenure_alloc::HistoryContext;
///
/// let guard = HistoryContext::enter(Some(HistoryContext::new("forward")));
/// assert_eq!(HistoryContext::current().unwrap().downcast::<&str>(), Some(&"forward"));
/// drop(guard);
/// assert_eq!(HistoryContext::current(), None);
/// ```
#[derive(Clone)]
pub struct HistoryContext(Arc<dyn Any + Send + Sync>);

impl HistoryContext {
    /// Makes a context of `value`.
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// Returns the value it was made of, if that is a `T`.
    pub fn downcast<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }

    /// Makes `context` the context of the calling thread's requests to allocators while the guard lives.
    ///
    /// Gathering a context takes time: [`History::wants`](super::History::wants) says when it would be kept.
    pub fn enter(context: Option<HistoryContext>) -> HistoryContextGuard {
        HistoryContextGuard { previous: CONTEXT.replace(context), thread: PhantomData }
    }

    /// Returns the calling thread's context.
    pub fn current() -> Option<HistoryContext> {
        CONTEXT.with_borrow(Clone::clone)
    }

    /// Keeps `note` with every event that the calling thread causes from now on, whichever contexts are kept. PyTorch's
    /// compile context and user metadata.
    pub fn set_note(note: Option<HistoryContext>) {
        // The old note is dropped after the borrow has ended: its drop may call `note`.
        drop(NOTE.replace(note));
    }

    /// Returns the calling thread's note.
    pub fn note() -> Option<HistoryContext> {
        NOTE.with_borrow(Clone::clone)
    }
}

/// Two contexts are equal if they are the same one; equal values do not suffice.
impl PartialEq for HistoryContext {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HistoryContext {}

impl fmt::Debug for HistoryContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&Arc::as_ptr(&self.0)).finish()
    }
}

/// Holds the calling thread in a context. When the guard is dropped, also by a panic, the thread returns to the context
/// before.
#[must_use = "it holds for as long as it lives"]
#[derive(Debug)]
pub struct HistoryContextGuard {
    previous: Option<HistoryContext>,
    /// Keeps the guard on the thread that entered the context.
    thread: PhantomData<*const ()>,
}

impl Drop for HistoryContextGuard {
    fn drop(&mut self) {
        drop(CONTEXT.replace(self.previous.take()));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn contexts_nest_and_end_with_a_panic() {
        let outer = HistoryContext::new(1);
        let inner = HistoryContext::new(2);
        let _outer = HistoryContext::enter(Some(outer.clone()));
        let result = catch_unwind(AssertUnwindSafe(|| {
            let _inner = HistoryContext::enter(Some(inner.clone()));
            assert_eq!(HistoryContext::current(), Some(inner.clone()));
            let _none = HistoryContext::enter(None);
            assert_eq!(HistoryContext::current(), None);
            panic!("on purpose");
        }));
        assert!(result.is_err());
        assert_eq!(HistoryContext::current(), Some(outer));
    }

    #[test]
    fn contexts_and_notes_are_their_threads_own() {
        let _here = HistoryContext::enter(Some(HistoryContext::new(())));
        HistoryContext::set_note(Some(HistoryContext::new(())));
        let there = std::thread::spawn(|| (HistoryContext::current(), HistoryContext::note())).join().unwrap();
        assert_eq!(there, (None, None));
        HistoryContext::set_note(None);
        assert_eq!(HistoryContext::note(), None);
    }

    #[test]
    fn a_context_equals_itself_alone() {
        let context = HistoryContext::new(7);
        assert_eq!(context, context.clone());
        assert_ne!(context, HistoryContext::new(7));
        assert_eq!((context.downcast::<i32>(), context.downcast::<u32>()), (Some(&7), None));
    }
}
