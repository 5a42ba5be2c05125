//! Memory that a heap has freed and not yet given back.
//!
//! # Note [Parking]
//!
//! What a heap got from the device's state (a slab, or a larger block's range) is *lent*. Freed whole, it is first
//! *parked*: it stays lent, and a request that the state would serve with it gets it back behind the heap's lock alone.
//!
//! The state would do so if it were again as it was just before it placed that memory. Every placement and every return
//! is numbered. If nothing but the parked memory was placed since, in the order opposite to that in which it was parked,
//! then giving all of it back leads to that earlier state, and a request of the same size ends at the same place. (Where
//! new chunks or windows were made for a block, more is free afterwards, but nothing else that this one would fit.) So
//! parked memory is a stack; whatever does not continue it makes the heap give all of it back, and so does every request
//! that the stack's top does not serve. Placement is then as if nothing were ever parked, up to second-order effects:
//! other streams do not see parked memory until no free range serves them, and a block found again does not count as a
//! use of its window. The recorded programs come out the same to the byte and to the driver call.

use smallvec::SmallVec;

use super::directory::Lent;
use crate::Address;

/// Lent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loan {
    pub(super) address: Address,
    pub(super) bytes: u64,
    pub(super) lent: Lent,
    /// The number of its placement; [`NEVER_PARKED`] if it would be placed elsewhere after a free.
    pub(super) number: u64,
    /// Whether free memory was made for it: giving it back leaves more than there was.
    pub(super) is_made: bool,
}

/// Lent memory that is given back together: mostly one loan or two.
pub(super) type Loans = SmallVec<[Loan; 2]>;

/// The state is never at this number.
pub(super) const NEVER_PARKED: u64 = u64::MAX;

/// The parked memory of a heap.
#[derive(Default)]
pub(super) struct Parked {
    loans: Vec<Loan>,
    /// The number that the state was at when the first was parked.
    since: u64,
    /// What is to be given back, in order.
    ended: Vec<Loan>,
}

impl Parked {
    /// Parks `loan`, while the state is at `now`. Whether that continues the stack; if not, everything is to be
    /// [given back](Self::take_all).
    #[inline]
    pub(super) fn park(&mut self, loan: Loan, now: u64) -> bool {
        let continues = match self.loans.last() {
            None => loan.number == now && self.ended.is_empty(),
            Some(last) => self.since == now && loan.number == last.number - 1 && !last.is_made,
        };
        if continues {
            self.since = now;
            self.loans.push(loan);
        } else {
            self.ended.append(&mut self.loans);
            self.ended.push(loan);
        }
        continues
    }

    /// The memory that the state, at `now`, would find for a request of so many bytes, if it is parked.
    #[inline]
    pub(super) fn take(&mut self, bytes: u64, lent: Lent, now: u64) -> Option<Loan> {
        let fits = |top: &Loan| top.bytes == bytes && top.lent == lent && self.since == now;
        self.loans.pop_if(|top| fits(top))
    }

    /// Whether something did not continue the stack.
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Everything, in the order in which it was parked.
    pub(super) fn take_all(&mut self) -> Loans {
        self.ended.drain(..).chain(self.loans.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan(number: u64) -> Loan {
        Loan { address: number << 30, bytes: 1 << 30, lent: Lent::Range, number, is_made: false }
    }

    #[test]
    fn what_was_placed_last_is_parked_and_found_again() {
        let mut parked = Parked::default();
        assert!(parked.park(loan(7), 7));
        assert!(parked.park(loan(6), 7));
        assert_eq!(parked.take(1 << 30, Lent::Range, 7), Some(loan(6)));
        assert_eq!(parked.take(1 << 29, Lent::Range, 7), None, "another size");
        assert_eq!(parked.take(1 << 30, Lent::Slab, 7), None, "another kind");
        assert_eq!(parked.take(1 << 30, Lent::Range, 8), None, "the state has changed");
        assert_eq!(parked.take(1 << 30, Lent::Range, 7), Some(loan(7)));
    }

    #[test]
    fn what_does_not_continue_the_stack_ends_it() {
        let mut parked = Parked::default();
        assert!(!parked.park(loan(6), 7));
        assert!(!parked.park(loan(7), 7), "before the first is given back");
        assert_eq!(parked.take_all()[..], [loan(6), loan(7)]);
        assert!(parked.park(loan(7), 7));
        assert!(!parked.park(loan(5), 7));
        assert_eq!(parked.take_all()[..], [loan(7), loan(5)]);
        assert!(parked.park(loan(7), 7));
        assert!(!parked.park(loan(6), 8));
        assert_eq!(parked.take(1 << 30, Lent::Range, 8), None);
        assert_eq!(parked.take_all()[..], [loan(7), loan(6)]);
        assert!(parked.take_all().is_empty());
    }
}
