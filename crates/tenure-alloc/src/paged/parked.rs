//! Memory that a heap has freed and not yet given back.
//!
//! # Note [Parking]
//!
//! Memory that a heap got from the device's state (a slab, or a larger block's range) is *lent*. Once it holds no
//! block, it is first *parked*: it stays lent, and a request that the state would serve with it gets it back under the
//! heap's lock alone.
//!
//! The state would do so if it were again as it was just before it placed that memory. Every placement and every return
//! has a number. Suppose that since then only the parked memory was placed, and was parked in the opposite order. Then
//! giving all of it back leads to that earlier state, and a request of the same size gets the same place. (Where new
//! chunks or windows were made for a block, more memory is free afterwards than before, but no other range fits this
//! request.)
//!
//! So parked memory is a stack. A loan that does not continue it makes the heap give all of it back, and so does every
//! request that the stack's top does not serve. Placement is then the same as without parking, up to second-order
//! effects: other streams do not see parked memory until no free range serves them, and a reused block does not count
//! as a use of its window, nor as a block of its cycle. The recorded programs give the same results to the byte and to
//! the driver call.

use smallvec::SmallVec;

use super::directory::LoanKind;
use crate::Address;

/// Memory lent to a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loan {
    pub(super) address: Address,
    pub(super) bytes: u64,
    pub(super) kind: LoanKind,
    /// The number of its placement: see Note [Parking]. [`NEVER_PARKED`] if it was placed by the rules of a streak, so
    /// that after a free the same request would be placed elsewhere.
    pub(super) number: u64,
    /// Whether chunks or a window were made for it. Giving it back then leaves more memory free than before it.
    pub(super) is_made: bool,
}

/// Loans that are given back together: mostly one or two.
pub(super) type Loans = SmallVec<[Loan; 2]>;

/// The number of a loan that never continues a stack: the state's numbers do not reach it.
pub(super) const NEVER_PARKED: u64 = u64::MAX;

/// The parked memory of a heap.
#[derive(Default)]
pub(super) struct ParkedLoans {
    loans: Vec<Loan>,
    /// The state's number when the last loan was parked; it must not change while the stack lasts.
    since: u64,
    /// Loans to give back to the state, in order: the stack they were in was broken.
    returns: Vec<Loan>,
}

impl ParkedLoans {
    /// Parks `loan`, while the state is at `now`. Returns whether it continues the stack; if not, the caller must give
    /// [everything](Self::take_all) back.
    #[inline]
    pub(super) fn park(&mut self, loan: Loan, now: u64) -> bool {
        let continues = match self.loans.last() {
            None => loan.number == now && self.returns.is_empty(),
            Some(last) => self.since == now && loan.number == last.number - 1 && !last.is_made,
        };
        if continues {
            self.since = now;
            self.loans.push(loan);
        } else {
            self.returns.append(&mut self.loans);
            self.returns.push(loan);
        }
        continues
    }

    /// Takes the loan on top of the stack, if the state, at `now`, would serve a request of `bytes` bytes with its
    /// memory.
    #[inline]
    pub(super) fn take(&mut self, bytes: u64, kind: LoanKind, now: u64) -> Option<Loan> {
        self.loans.pop_if(|top| top.bytes == bytes && top.kind == kind && self.since == now)
    }

    /// Returns whether a loan broke the stack, so that the heap must give [everything](Self::take_all) back.
    pub(super) fn has_returns(&self) -> bool {
        !self.returns.is_empty()
    }

    /// Takes all loans, in the order in which they were parked.
    pub(super) fn take_all(&mut self) -> Loans {
        self.returns.drain(..).chain(self.loans.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan(number: u64) -> Loan {
        Loan { address: number << 30, bytes: 1 << 30, kind: LoanKind::Range, number, is_made: false }
    }

    #[test]
    fn the_latest_loans_are_parked_and_found_again() {
        let mut parked = ParkedLoans::default();
        assert!(parked.park(loan(7), 7));
        assert!(parked.park(loan(6), 7));
        assert_eq!(parked.take(1 << 30, LoanKind::Range, 7), Some(loan(6)));
        assert_eq!(parked.take(1 << 29, LoanKind::Range, 7), None, "another size");
        assert_eq!(parked.take(1 << 30, LoanKind::Slab, 7), None, "another kind");
        assert_eq!(parked.take(1 << 30, LoanKind::Range, 8), None, "the state has changed");
        assert_eq!(parked.take(1 << 30, LoanKind::Range, 7), Some(loan(7)));
    }

    #[test]
    fn a_loan_out_of_order_ends_the_stack() {
        let mut parked = ParkedLoans::default();
        assert!(!parked.park(loan(6), 7));
        assert!(!parked.park(loan(7), 7), "before the first is given back");
        assert_eq!(parked.take_all()[..], [loan(6), loan(7)]);
        assert!(parked.park(loan(7), 7));
        assert!(!parked.park(loan(5), 7));
        assert_eq!(parked.take_all()[..], [loan(7), loan(5)]);
        assert!(parked.park(loan(7), 7));
        assert!(!parked.park(loan(6), 8));
        assert_eq!(parked.take(1 << 30, LoanKind::Range, 8), None);
        assert_eq!(parked.take_all()[..], [loan(7), loan(6)]);
        assert!(parked.take_all().is_empty());
    }
}
