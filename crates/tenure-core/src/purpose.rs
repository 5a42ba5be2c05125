use std::cell::Cell;
use std::marker::PhantomData;

use crate::{KeyId, Site, Span, Tag};

/// A purpose, and how long it holds.
pub(crate) type Said = (Tag, KeyId, Span);

thread_local! {
    static CURRENT: Cell<Said> = const { Cell::new((Tag::Unknown, KeyId::NONE, Span::ENDLESS)) };
}

/// Says what the calling thread's storages are for: those allocated while it lives have this tag and key. It goes back
/// to what was before when it is dropped, also by a panic.
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
    previous: Said,
    /// It belongs to the thread that entered it.
    thread: PhantomData<*const ()>,
}

impl Purpose {
    /// Allocations of this thread are for `tag`, and are `key`, from now on.
    pub fn enter(tag: Tag, key: KeyId) -> Self {
        Self { previous: Self::replace(tag, key, Span::ENDLESS), thread: PhantomData }
    }

    /// The same until somebody says otherwise, or `span` ends: for callers whose scopes are not those of the language,
    /// such as hooks around another program's calls. Returns what was before, to be set again.
    #[inline]
    pub fn replace(tag: Tag, key: KeyId, span: Span) -> (Tag, KeyId, Span) {
        CURRENT.replace((tag, key, span))
    }

    /// What this thread allocates for now.
    #[inline]
    pub fn current() -> (Tag, KeyId) {
        let (tag, key, span) = CURRENT.get();
        if span.is_over() { (Tag::Unknown, KeyId::NONE) } else { (tag, key) }
    }

    /// What the allocation that is about to be made is for, and its key: the one that was said, or one that follows from
    /// the thread's [`Site`], which counts it. So this is called once for each, by whoever needs keys of all.
    pub fn identify() -> (Tag, KeyId) {
        let (tag, key) = Self::current();
        if key == KeyId::NONE { (tag, Site::next_key()) } else { (tag, key) }
    }

    /// What was said, to be [resumed](Self::resume) on another thread.
    pub(crate) fn said() -> Said {
        CURRENT.get()
    }

    pub(crate) fn resume(said: Said) -> Self {
        Self { previous: CURRENT.replace(said), thread: PhantomData }
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
        let (said, ended) = (Barrier::new(2), Barrier::new(2));
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
