//! Serving of more models than fit on a device: each model computes while its weights are still being copied.
//!
//! [`Images`] keeps weights in host memory, within a budget. A [`Switch`] keeps as many of them on a device as its
//! budget allows. The caller chooses which: [`Model::load`] brings a model, and [`Model::evict`] makes room. [`groups`]
//! divides a model's layers, and [`residency`] rates how much a model is worth its memory. Other processes compute with
//! a model without copying it: with [`Model::lend`] and [`Standby`], or, while it is still being copied, with
//! [`Model::lend_ahead`] and [`Borrowed`].
//!
//! ```
//! use std::sync::Arc;
//! use tenure_device::memory::{DeviceMemory, MemoryConfig};
//! use tenure_device::sim::{SimConfig, SimDriver};
//! use tenure_switch::{Entry, Images, Manifest, Origin, Switch, SwitchOptions};
//!
//! let driver = Arc::new(SimDriver::new(SimConfig::default()));
//! let memory: &'static DeviceMemory = Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default())?));
//! let images = Images::new(64 << 20, Some(Arc::clone(memory.driver())))?;
//! let switch = Switch::new(memory, SwitchOptions::new(64 << 20))?;
//!
//! let weights = |value| Origin::Made(Arc::new(move |bytes: &mut [u8]| bytes.fill(value)));
//! let tensor = |value| Entry { name: format!("layer.{value}"), bytes: 20 << 20, origin: weights(value) };
//! let manifest = Arc::new(Manifest::new("model", vec![tensor(1), tensor(2)], vec![1, 2])?);
//! let model = switch.register(&manifest)?; // its tensors have addresses: `model.place(0)`
//!
//! let stream = memory.streams().current();
//! model.load(&images.acquire(&manifest)?)?; // returns at once
//! for layer in 0..2 {
//!     model.wait(manifest.group_of(layer), &stream)?; // as the device does, before it computes
//! }
//! model.used_by(&stream)?;
//! model.evict(usize::MAX); // copies nothing, and waits for nothing
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]

mod borrowed;
mod chunk_pool;
mod error;
mod gate;
pub mod groups;
mod image;
mod images;
mod mapped;
mod orders;
mod progress;
pub mod residency;
mod run;
mod standby;
mod switch;

pub use borrowed::{Borrowed, PinnedTables};
pub use error::SwitchError;
pub use image::{ALIGNMENT, Entry, Image, Manifest, Origin, WriteTensor};
pub use images::{ImageStatistics, Images};
pub use mapped::Mapped;
pub use orders::{KnownOrder, OrderKey, Orders};
pub use progress::{Arrived, FirstUse, Stopped};
pub use run::{DeviceUse, Run};
pub use standby::{Lent, LentChunk, Standby, Terms};
pub use switch::{Loaded, Model, Switch, SwitchOptions, SwitchStatistics};
