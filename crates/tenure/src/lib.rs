//! Tenure, a tensor memory runtime.
//!
//! A tensor's bytes hold a place in memory for a time. This crate is the front door: `use tenure::prelude::*` brings
//! in what the crates below offer, [`replay`] plays what a real program did with its memory on any of the allocators,
//! and [`report`] shows it.
//!
//! ```
//! use tenure::prelude::*;
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz");
//! let trace = Trace::read(path)?;
//! let outcome = Replay::new(AllocatorKind::Native).run(&trace)?;
//! assert_eq!(outcome.mismatched_addresses, Some(0)); // every block is where PyTorch put it
//! println!("{} reserved for {}", Bytes(outcome.peak_reserved_bytes), Bytes(outcome.peak_requested_bytes));
//! # Ok::<(), tenure::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod bench;
pub mod devices;
mod error;
pub mod prelude;
pub mod replay;
pub mod report;
pub mod units;

pub use error::Error;
