//! Which request runs next, on which device and with which others; and which models stay there.
//!
//! Nothing here waits, has threads or reads a clock. A [`Scheduler`] is told what happened and when, and is polled for
//! [`Decision`]s. Times are durations since an origin that its user chooses, and never go back.
//!
//! ```
//! use std::time::Duration;
//! use tenure_serve::scheduler::{Decision, Model, Request, Scheduler, SchedulerConfig};
//!
//! let mut scheduler = Scheduler::new(SchedulerConfig::default());
//! let device = scheduler.add_device(80 << 30);
//! let model = scheduler.add_model(Model { bytes: 240 << 20, max_rows: 8, ..Model::default() })?;
//!
//! let now = Duration::ZERO;
//! let request = scheduler.submit(Request { rows: 2, ..Request::new(model) }, now)?;
//! let Some(Decision::Run(batch)) = scheduler.poll(now) else { panic!("the device is idle") };
//! assert_eq!((batch.device, &batch.requests[..], batch.load_bytes), (device, &[request][..], 256 << 20));
//!
//! scheduler.loaded(device, model, Duration::from_millis(5), Duration::from_millis(5));
//! scheduler.started(batch.id, Duration::from_millis(1));
//! let answered = scheduler.finished(batch.id, Some(Duration::from_millis(6)), Duration::from_millis(7));
//! assert_eq!(answered, [request]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Order.** A request is *due* when it has waited for [`SchedulerConfig::patience`], halved for each unit of priority and
//! doubled for each below zero, or for half of the time to its deadline. While nothing is due, what answers most
//! requests a second goes first, copying of weights included: so what is resident is preferred. What is due goes first,
//! the earliest first. A switch leaves a debt: as long as the device stood still for it, what is resident and due goes
//! before what is not resident. So at most half of a busy device's time goes to switches, and nobody waits longer than
//! until it is due, and then for what is due before it, for its elders in its class, and for the debts.
//!
//! **Batches.** A batch starts with the oldest request of a class, which is a model and a priority; others of the same
//! shape ride along, by priority, then by age.
//!
//! **Outcomes.** A request that was accepted has one: it is in the list that [`Scheduler::finished`] returns, or in a
//! [`Decision::Answer`].

mod batch;
mod choice;
mod cost;
mod device;
mod model;
mod queue;
mod report;
mod request;
mod residency;
mod state;

pub use batch::{Batch, BatchId, Decision, Load};
pub use device::DeviceId;
pub use model::{Model, ModelId, RegisterError};
pub use request::{Outcome, Refusal, Request, RequestId, Shape};
pub use residency::{Eviction, NoRoom, Residency, Weights};
pub use state::{Scheduler, SchedulerConfig};
