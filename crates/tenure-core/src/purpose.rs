//! The purpose of a thread's allocations.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::{KeyId, Site, Span, Tag};

/// A purpose, and how long it holds.
pub(crate) type PurposeParts = (Tag, KeyId, Span);

thread_local! {
    static CURRENT: Cell<PurposeParts> = const { Cell::new((Tag::Unknown, KeyId::NONE, Span::ENDLESS)) };
}

/// The purpose of the calling thread's allocations: storages that are allocated while it lives have this tag and key.
/// When it is dropped, even by a panic, the previous purpose is back.
///
/// ```
/// use tenure_core::{KeyId, Purpose, Tag};
///
/// let weights = Purpose::enter(Tag::Weight, KeyId::NONE);
/// assert_eq!(Purpose::current(), (Tag::Weight, KeyId::NONE));
/// drop(weights);
/// assert_eq!(Purpose::current(), (Tag::Unknown, KeyId::NONE));
/// ```
#[must_use = "it holds for as long as it lives"]
#[derive(Debug)]
pub struct Purpose {
    previous: PurposeParts,
    /// Makes the purpose belong to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl Purpose {
    /// Gives allocations of this thread the tag `tag` and the key `key`, from now on.
    pub fn enter(tag: Tag, key: KeyId) -> Self {
        Self { previous: Self::replace(tag, key, Span::ENDLESS), thread: PhantomData }
    }

    /// Sets the purpose until it is replaced or `span` ends: for callers whose scopes are not those of the language,
    /// such as hooks around another program's calls. Returns the previous purpose, to be set again.
    #[inline]
    pub fn replace(tag: Tag, key: KeyId, span: Span) -> (Tag, KeyId, Span) {
        CURRENT.replace((tag, key, span))
    }

    /// Returns the current tag and key of this thread's allocations.
    #[inline]
    pub fn current() -> (Tag, KeyId) {
        let (tag, key, span) = CURRENT.get();
        if span.is_over() { (Tag::Unknown, KeyId::NONE) } else { (tag, key) }
    }

    /// Returns the tag and the key of the allocation that is about to be made. The key is the one that was set, or
    /// follows from the thread's [`Site`], which counts the allocation. So an allocator that wants keys calls this
    /// exactly once for each allocation.
    pub fn identify() -> (Tag, KeyId) {
        let (tag, key) = Self::current();
        if key == KeyId::NONE { (tag, Site::next_key()) } else { (tag, key) }
    }

    /// Returns the purpose that was set, to be [resumed](Self::resume) on another thread.
    pub(crate) fn parts() -> PurposeParts {
        CURRENT.get()
    }

    pub(crate) fn resume(parts: PurposeParts) -> Self {
        Self { previous: CURRENT.replace(parts), thread: PhantomData }
    }
}

impl Drop for Purpose {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn purposes_nest_and_end_with_a_panic() {
        let _outer = Purpose::enter(Tag::Gradient, KeyId::NONE);
        let result = std::panic::catch_unwind(|| {
            let _inner = Purpose::enter(Tag::Workspace, KeyId::NONE);
            assert_eq!(Purpose::current().0, Tag::Workspace);
            panic!("on purpose");
        });
        assert!(result.is_err());
        assert_eq!(Purpose::current().0, Tag::Gradient);
    }

    #[test]
    fn a_purpose_is_its_threads_own() {
        let _here = Purpose::enter(Tag::Input, KeyId::NONE);
        let there = std::thread::spawn(Purpose::current).join().unwrap();
        assert_eq!(there.0, Tag::Unknown);
    }

    #[test]
    fn a_purpose_ends_with_its_span_on_every_thread() {
        let span = Span::begin();
        let said = Barrier::new(2);
        let ended = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Purpose::replace(Tag::Gradient, KeyId::NONE, span);
                assert_eq!(Purpose::current().0, Tag::Gradient);
                said.wait();
                ended.wait();
                assert_eq!(Purpose::current().0, Tag::Unknown);
            });
            said.wait();
            span.end();
            ended.wait();
        });
    }
}
