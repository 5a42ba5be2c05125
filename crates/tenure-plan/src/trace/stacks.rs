//! Call stacks of recorded events.

use std::fmt;
use std::sync::Arc;

/// The call stacks of a trace's events; equal stacks are stored once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stacks {
    /// The number of each event's stack; empty if no event has one.
    pub(super) of_events: Vec<u32>,
    /// The distinct stacks, by the numbers of their frames. The first is empty.
    pub(super) stacks: Vec<Arc<[u32]>>,
    pub(super) frames: Vec<StackFrame>,
}

/// A function that was running when an event was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// The function's name.
    pub name: Arc<str>,
    /// The file that it is in.
    pub filename: Arc<str>,
    /// The line in the file, from 1; 0 if the recorder gave none.
    pub line: u32,
}

impl Stacks {
    /// Returns the stack of the event at `index`, the innermost frame first. Empty if the recorder kept none.
    pub fn of_event(&self, index: usize) -> impl ExactSizeIterator<Item = &StackFrame> {
        self.frames(self.number_of_event(index))
    }

    /// Returns the number of the event's stack. Equal stacks have equal numbers, below [`len`](Self::len); the empty
    /// one has 0.
    pub fn number_of_event(&self, index: usize) -> u32 {
        self.of_events.get(index).copied().unwrap_or(0)
    }

    /// Returns the frames of the stack with this number, the innermost first.
    pub fn frames(&self, number: u32) -> impl ExactSizeIterator<Item = &StackFrame> {
        let stack = self.stacks.get(number as usize).map_or(&[][..], |stack| &**stack);
        stack.iter().map(|&frame| &self.frames[frame as usize])
    }

    /// Returns the number of distinct stacks, the empty one included; 0 if no event has a stack.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Returns whether no event has a stack.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}

impl fmt::Display for StackFrame {
    /// Writes `function file:line`, without a line if there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.filename)?;
        if self.line > 0 { write!(f, ":{}", self.line) } else { Ok(()) }
    }
}
