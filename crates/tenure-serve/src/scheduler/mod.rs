//! The scheduler decides which requests run next, which of them run together, on which device, and which models stay on
//! a device.
//!
//! Nothing here waits, has threads or reads a clock. The user reports to a [`Scheduler`] what happened and when, and
//! polls it for [`Decision`]s. Times are durations since an origin that the user chooses, and never go back.
//!
//! ```
//! use std::time::Duration;
//! use tenure_serve::scheduler::{Decision, ModelSpec, RequestSpec, Scheduler, SchedulerConfig};
//!
//! let mut scheduler = Scheduler::new(SchedulerConfig::default());
//! let device = scheduler.add_device(80 << 30);
//! let model = scheduler.add_model(ModelSpec { bytes: 240 << 20, max_rows: 8, ..ModelSpec::default() })?;
//!
//! let now = Duration::ZERO;
//! let request = scheduler.submit(RequestSpec { rows: 2, ..RequestSpec::new(model) }, now)?;
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
//! **Order.** A request is *due* when it has waited for [`SchedulerConfig::patience`], halved for each unit of priority
//! and doubled for each below zero, or for half of the time to its deadline. While no request is due, the model that
//! answers most requests a second goes first, counting the time to copy its weights: so resident models are preferred.
//! Due requests go first, the earliest first. A switch leaves a debt: for as long as the device stood still for it, due
//! requests of resident models go before those of other models. So at most half of a busy device's time goes to
//! switches. A request waits until it is due, and then only for requests that were due before it, for older requests of
//! its class, and for the debts.
//!
//! **Waiting.** Beside its turn, a request waits for one of: more requests to fill its batch, up to the model's delay; a
//! batch of its model that runs; room for the weights; the end of a rest, which a model takes after its workers died; a
//! free device, which training in the background may have to leave first. The file `choice` decides it.
//!
//! **Batches.** A class is a model and a priority. A batch starts with the oldest request of a class. Other requests
//! for the same model and of the same shape join it, by priority, then by turn: clients take turns.
//!
//! **Outcomes.** Every accepted request has exactly one outcome: it is in the list that [`Scheduler::finished`]
//! returns, or in a [`Decision::Answer`].

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
pub use model::{ModelId, ModelSpec, RegisterError};
pub use request::{ClientId, Refusal, RequestId, RequestSpec, Shape, Unanswered};
pub use residency::{Eviction, NoRoom, Residency, WeightsSpec};
pub use state::{Scheduler, SchedulerConfig};
