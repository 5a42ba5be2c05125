//! Thread-local settings that hold while a guard lives.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

use tenure_core::{Name, Site, SiteGuard};

/// The settings of one thread, each with its guard. The setting entered last among those alive holds, in whatever order
/// guards are dropped.
///
/// After the thread-local is destroyed at the thread's end there are no settings; a guard that another thread-local's
/// destructor enters then has no effect.
pub(crate) struct Scopes<T> {
    entered: Cell<u64>,
    /// The settings, each with its number, the latest last.
    alive: RefCell<Vec<(u64, T)>>,
}

impl<T> Scopes<T> {
    pub(crate) const fn new() -> Self {
        Self { entered: Cell::new(0), alive: RefCell::new(Vec::new()) }
    }

    /// Adds a setting. Returns its number, to [`leave`](Self::leave) with.
    pub(crate) fn enter(thread: &'static LocalKey<Self>, setting: T) -> u64 {
        thread
            .try_with(|scopes| {
                let number = scopes.entered.get() + 1;
                scopes.entered.set(number);
                scopes.alive.borrow_mut().push((number, setting));
                number
            })
            .unwrap_or(0)
    }

    /// Replaces the setting that holds. It holds as long as the one that it replaces; if there is none, until it is
    /// replaced itself. Returns the old one. The caller should drop that while the scopes are not borrowed.
    pub(crate) fn replace(thread: &'static LocalKey<Self>, setting: T) -> Option<T> {
        thread
            .try_with(|scopes| {
                let mut alive = scopes.alive.borrow_mut();
                match alive.last_mut() {
                    Some((_, held)) => Some(std::mem::replace(held, setting)),
                    None => {
                        // No guard has this number.
                        alive.push((0, setting));
                        None
                    }
                }
            })
            .ok()
            .flatten()
    }

    /// Removes a setting and returns it. The caller should drop it while the scopes are not borrowed.
    pub(crate) fn leave(thread: &'static LocalKey<Self>, number: u64) -> Option<T> {
        thread
            .try_with(|scopes| {
                let mut alive = scopes.alive.borrow_mut();
                let at = alive.iter().rposition(|(other, _)| *other == number)?;
                Some(alive.remove(at).1)
            })
            .ok()
            .flatten()
    }

    /// Returns the setting that holds, or `None` if there is none.
    pub(crate) fn latest(thread: &'static LocalKey<Self>) -> Option<T>
    where
        T: Clone,
    {
        thread.try_with(|scopes| scopes.alive.borrow().last().map(|(_, setting)| setting.clone())).ok().flatten()
    }
}

/// Attributes this thread's allocations to the operation, unless it is part of another.
pub(crate) fn entered(op: &'static str) -> SiteGuard {
    Site::enter_operation(Name::of(op))
}
