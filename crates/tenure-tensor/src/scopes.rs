//! Settings of a thread, each for as long as a guard lives.

use std::cell::{Cell, RefCell};

/// What guards of one kind set on a thread. The latest that is alive holds, in whatever order they go.
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
    pub(crate) fn enter(&self, setting: T) -> u64 {
        let number = self.entered.get() + 1;
        self.entered.set(number);
        self.alive.borrow_mut().push((number, setting));
        number
    }

    /// Ends one. Returns its setting, which is better dropped where this is not borrowed.
    pub(crate) fn leave(&self, number: u64) -> Option<T> {
        let mut alive = self.alive.borrow_mut();
        let at = alive.iter().rposition(|(other, _)| *other == number)?;
        Some(alive.remove(at).1)
    }

    /// The setting that holds; none where nothing was entered.
    pub(crate) fn latest(&self) -> Option<T>
    where
        T: Clone,
    {
        self.alive.borrow().last().map(|(_, setting)| setting.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.alive.borrow().is_empty()
    }
}
