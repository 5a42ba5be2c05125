//! What happened to a device's memory, as data, and what could happen instead.
//!
//! A [`Trace`] is everything one device's allocator did while a program ran: read from a PyTorch memory snapshot or
//! from Tenure's own compact format, checked once, and from then on known to make sense.
#![forbid(unsafe_code)]

pub mod packing;
mod pickle;
mod trace;

pub use trace::{
    Action, Event, EventError, Format, LiveBlock, ReadOptions, Settings, SizeClass, SizeClassSummary, Summary, Trace,
    TraceError,
};
