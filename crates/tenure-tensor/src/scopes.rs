//! Settings of a thread, each for as long as a guard lives.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

/// What guards of one kind set on a thread. The latest that is alive holds, in whatever order they go.
///
/// A thread that ends has none any more, and guards that other values of the thread take as they go hold nothing.
pub(crate) struct Scopes<T> {
    entered: Cell<u64>,
    /// (number, setting), the latest last.
    alive: RefCell<Vec<(u64, T)>>,
}

impl<T> Scopes<T> {
    pub(crate) const fn new() -> Self {
        Self { entered: Cell::new(0), alive: RefCell::new(Vec::new()) }
    }

    /// Begins to hold a setting. Returns the number to [`leave`](Self::leave) with.
    pub(crate) fn enter(thread: &'static LocalKey<Self>, setting: T) -> u64 {
        let enter = |scopes: &Self| {
            let number = scopes.entered.get() + 1;
            scopes.entered.set(number);
            scopes.alive.borrow_mut().push((number, setting));
            number
        };
        thread.try_with(enter).unwrap_or(0)
    }

    /// Ends one. Returns its setting, which is better dropped where the scopes are not borrowed.
    pub(crate) fn leave(thread: &'static LocalKey<Self>, number: u64) -> Option<T> {
        let leave = |scopes: &Self| {
            let mut alive = scopes.alive.borrow_mut();
            let at = alive.iter().rposition(|(other, _)| *other == number)?;
            Some(alive.remove(at).1)
        };
        thread.try_with(leave).ok().flatten()
    }

    /// The setting that holds; none where nothing was entered.
    pub(crate) fn latest(thread: &'static LocalKey<Self>) -> Option<T>
    where
        T: Clone,
    {
        let latest = |scopes: &Self| scopes.alive.borrow().last().map(|(_, setting)| setting.clone());
        thread.try_with(latest).ok().flatten()
    }
}
