//! Placement that was learned, and planners as a process: [`serve`].
//!
//! A problem is a *market*. At each kernel a *seller* asks a price for the room in the fast tier, and each tensor, a *buyer*,
//! wants room all its life if that is worth the sum of the prices. All sellers share the weights of one small network, which
//! sees what is wanted of each and says how its price changes; a round of the market is one plan. Where tensors may move or
//! be computed again, *groups* of tensors share another network, which sees what each costs at these prices and says what it
//! leans to. A [`Policy`] is both. [`train`](train::train) teaches it on made-up problems, and the planner [`Marl`] uses what
//! was learned on any other. A [`Learner`] corrects what a problem tells by times that its program reports.
#![forbid(unsafe_code)]

mod choices;
mod features;
mod learning;
mod lock;
mod market;
mod marl;
mod planners;
mod play;
mod policy;
mod random;
pub mod serve;
pub mod train;

pub use learning::{LearnedError, Learner, Measured, ReportError};
pub use marl::Marl;
pub use planners::planners;
pub use policy::{Policy, PolicyError};
