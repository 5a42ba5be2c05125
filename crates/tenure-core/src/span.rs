//! Spans: stretches of a program's run that end for all threads at once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The spans that have begun and not ended. Each is in the slot that its number determines.
static OPEN: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
static NEXT: AtomicU64 = AtomicU64::new(1);
const SLOTS: usize = 256;

/// A stretch of a program's run that ends for all threads at once. A [`Purpose`](crate::Purpose) that was set for a
/// span ends with it on all threads. It serves callers that cannot reach these threads when they know that it is over.
///
/// ```
/// use tenure_core::{KeyId, Purpose, Span, Tag};
///
/// let pass = Span::begin();
/// Purpose::replace(Tag::Gradient, KeyId::NONE, pass);
/// pass.end();
/// assert_eq!(Purpose::current(), (Tag::Unknown, KeyId::NONE));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(u64);

impl Span {
    /// The span that never ends.
    pub const ENDLESS: Self = Self(0);

    /// Begins a span, which the caller must end. It is endless if 256 others are open.
    pub fn begin() -> Self {
        for (slot, open) in OPEN.iter().enumerate().filter(|(_, open)| open.load(Relaxed) == 0) {
            let number = NEXT.fetch_add(1, Relaxed) * SLOTS as u64 + slot as u64;
            if open.compare_exchange(0, number, Relaxed, Relaxed).is_ok() {
                return Self(number);
            }
        }
        Self::ENDLESS
    }

    /// Ends the span. Ending it again has no effect. A thread that is synchronised with this one afterwards sees that
    /// the span is over.
    pub fn end(self) {
        // Another span may have the slot by now.
        let _ = self.slot().compare_exchange(self.0, 0, Relaxed, Relaxed);
    }

    /// Returns whether the span has ended.
    #[inline]
    pub fn is_over(self) -> bool {
        self != Self::ENDLESS && self.slot().load(Relaxed) != self.0
    }

    /// Returns the span's number, for callers in other languages. [`from_raw`](Self::from_raw) takes it.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// Returns the span with this number. A span that is not open is over.
    pub fn from_raw(number: u64) -> Self {
        Self(number)
    }

    fn slot(self) -> &'static AtomicU64 {
        &OPEN[self.0 as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_ends_once_and_ends_no_other() {
        let first = Span::begin();
        assert!(!first.is_over());
        first.end();
        let later: Vec<_> = (0..8).map(|_| Span::begin()).collect();
        first.end();
        assert!(first.is_over() && later.iter().all(|span| !span.is_over()));
        later.iter().for_each(|span| span.end());
        assert!(later.iter().all(|span| span.is_over()) && !Span::ENDLESS.is_over());
    }

    #[test]
    fn the_endless_span_cannot_be_ended() {
        Span::ENDLESS.end();
        assert!(!Span::ENDLESS.is_over());
    }
}
