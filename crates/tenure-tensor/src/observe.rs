//! Observers of operations. Profilers and exporters see each call of an operation, its arguments and its result.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use tenure_tensor::observe::{self, Observer};
//! use tenure_tensor::operation::{Argument, Operation};
//! use tenure_tensor::{DType, Device, Tensor};
//!
//! #[derive(Default)]
//! struct Names(Mutex<Vec<&'static str>>);
//!
//! impl Observer for Names {
//!     fn begin(&self, operation: &'static Operation, _: &[Argument<'_>]) {
//!         self.0.lock().unwrap().push(operation.name);
//!     }
//! }
//!
//! let x = Tensor::ones(&[2, 3], DType::F32, Device::CPU)?;
//! let names = Arc::new(Names::default());
//! let observing = observe::start(names.clone());
//! x.exp()?.sum(&[], false)?;
//! drop(observing);
//! // Other operations may be parts of `sum`.
//! assert_eq!(names.0.lock().unwrap()[..2], ["exp", "sum"]);
//! # Ok::<(), tenure_tensor::TensorError>(())
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;

use crate::autograd::Node;
use crate::operation::{Argument, Operation, Output};
use crate::ops::OPERATIONS;
use crate::{Result, Tensor, TensorError};

/// Sees the operations that all threads call, from the thread that calls.
///
/// An operation that is composed of others begins before them and ends after them. Operations that an observer calls
/// itself are not observed.
pub trait Observer: Send + Sync {
    /// A call begins. There is an argument for each parameter of the operation, in order.
    fn begin(&self, operation: &'static Operation, arguments: &[Argument<'_>]);

    /// The call that the thread began last, of those that have not ended, ends. The result of an operation in place is
    /// [`Output::InPlace`]. There is none after a panic.
    fn end(&self, operation: &'static Operation, result: Option<std::result::Result<&Output, &TensorError>>) {
        let _ = (operation, result);
    }

    /// The program reads elements of a tensor as Rust's or Python's values: [`Tensor::to_vec`], [`Tensor::item`].
    fn read(&self, tensor: &Tensor) {
        let _ = tensor;
    }

    /// The program made a tensor of numbers that it writes, such as the list in `x[:, [2, 1, 0]]`.
    fn literal(&self, tensor: &Tensor) {
        let _ = tensor;
    }

    /// A section of the thread's run begins. Operations and other sections within it end before it does.
    fn begin_section(&self, section: Section<'_>) {
        let _ = section;
    }

    /// The section that the thread began last, of those that have not ended, ends.
    fn end_section(&self) {}
}

/// A section of a thread's run that is no operation.
#[derive(Clone, Copy)]
pub enum Section<'a> {
    /// The backward of an operation: a node of the graph runs its formula.
    Backward(&'a Node),
    /// A section that the program [names](section).
    Named(&'a str),
}

/// Shows a section to observers until the returned value is dropped. PyTorch's `record_function`.
pub fn section(name: &str) -> RunningSection {
    RunningSection::begin(Section::Named(name))
}

/// Shows to observers that a node runs its formula.
pub(crate) fn backward(node: &Node) -> RunningSection {
    RunningSection::begin(Section::Backward(node))
}

/// A section of a thread's run. It ends when this is dropped.
#[must_use = "the section ends when this is dropped"]
pub struct RunningSection {
    /// The observers that were told that it began.
    observers: Vec<Arc<dyn Observer>>,
    /// A section ends on the thread that it began on.
    not_send: PhantomData<*const ()>,
}

impl RunningSection {
    #[inline]
    fn begin(section: Section<'_>) -> Self {
        if is_on() { Self::tell_begin(section) } else { Self { observers: Vec::new(), not_send: PhantomData } }
    }

    #[cold]
    fn tell_begin(section: Section<'_>) -> Self {
        let observers = OBSERVERS.read().clone();
        as_observer(|| observers.iter().for_each(|observer| observer.begin_section(section)));
        RUNNING.with_borrow_mut(|running| running.push(SECTION));
        Self { observers, not_send: PhantomData }
    }

    #[cold]
    fn tell_end(&self) {
        // At the thread's end, there may be no list any more.
        if RUNNING.try_with(|running| remove_last(running, SECTION)).is_ok() {
            as_observer(|| self.observers.iter().for_each(|observer| observer.end_section()));
        }
    }
}

impl Drop for RunningSection {
    fn drop(&mut self) {
        if !self.observers.is_empty() {
            self.tell_end();
        }
    }
}

/// Operations are observed until this is dropped.
#[must_use = "observing ends when this is dropped"]
pub struct Observing {
    observer: Arc<dyn Observer>,
}

/// Starts to show operations to an observer. A call that has begun before is not shown.
pub fn start(observer: Arc<dyn Observer>) -> Observing {
    let mut observers = OBSERVERS.write();
    observers.push(Arc::clone(&observer));
    IS_ON.store(true, Ordering::Relaxed);
    Observing { observer }
}

impl Drop for Observing {
    fn drop(&mut self) {
        let mut observers = OBSERVERS.write();
        if let Some(at) = observers.iter().position(|other| Arc::ptr_eq(other, &self.observer)) {
            observers.remove(at);
        }
        IS_ON.store(!observers.is_empty(), Ordering::Relaxed);
    }
}

static OBSERVERS: RwLock<Vec<Arc<dyn Observer>>> = RwLock::new(Vec::new());

/// Whether there is an observer: a call looks here first.
static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The calls of this thread that have begun and are observed, by the operations' own names.
    static RUNNING: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Stands in [`RUNNING`] for an observer.
const OBSERVER: &str = "";

/// Stands in [`RUNNING`] for a section.
const SECTION: &str = "section";

/// Returns whether calls are observed.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Tells observers that the program reads a tensor's elements, unless an operation or an observer reads them.
#[cold]
pub(crate) fn tell_read(tensor: &Tensor) {
    if RUNNING.with_borrow(Vec::is_empty) {
        let observers = OBSERVERS.read().clone();
        as_observer(|| observers.iter().for_each(|observer| observer.read(tensor)));
    }
}

/// Tells observers that the program made a tensor of numbers that it writes.
pub fn tell_literal(tensor: &Tensor) {
    if is_on() {
        let observers = OBSERVERS.read().clone();
        as_observer(|| observers.iter().for_each(|observer| observer.literal(tensor)));
    }
}

/// Computes an operation, and shows the call to observers, by the operation's [own name](Operation::own_name).
#[inline]
pub(crate) fn observed<'a, A: AsRef<[Argument<'a>]>, T: Clone + Into<Output>>(
    own_name: &'static str,
    arguments: impl FnOnce() -> A,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if !is_on() {
        return call();
    }
    let begun = Begun::new(own_name, arguments().as_ref());
    let result = call();
    if let Some(begun) = begun {
        begun.end(&result);
    }
    result
}

/// A call that observers were told of.
struct Begun {
    operation: &'static Operation,
    /// The observers that were told.
    observers: Vec<Arc<dyn Observer>>,
    has_ended: bool,
}

impl Begun {
    /// Tells observers that an operation begins, by its [own name](Operation::own_name). Returns `None` if an observer
    /// calls it, or if it is the operation that has begun already: the Rust method that an overload calls.
    #[cold]
    fn new(own_name: &'static str, arguments: &[Argument<'_>]) -> Option<Self> {
        let is_seen = RUNNING
            .try_with(|running| !matches!(running.borrow().last(), Some(last) if [own_name, OBSERVER].contains(last)));
        let operation = *NAMED.get(own_name)?;
        if !is_seen.unwrap_or(false) {
            return None;
        }
        let observers = OBSERVERS.read().clone();
        as_observer(|| observers.iter().for_each(|observer| observer.begin(operation, arguments)));
        RUNNING.with_borrow_mut(|running| running.push(own_name));
        Some(Self { operation, observers, has_ended: false })
    }

    /// Tells the observers the result.
    #[cold]
    fn end<T: Clone + Into<Output>>(mut self, result: &Result<T>) {
        let output = result.as_ref().map(|output| output.clone().into());
        self.tell(Some(output.as_ref().map_err(|error| *error)));
    }

    fn tell(&mut self, result: Option<std::result::Result<&Output, &TensorError>>) {
        self.has_ended = true;
        RUNNING.with(|running| remove_last(running, self.operation.own_name));
        as_observer(|| self.observers.iter().for_each(|observer| observer.end(self.operation, result)));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.has_ended {
            self.tell(None);
        }
    }
}

/// Removes the last call or section of this name. It is not the last of all if a section that began within a call ends
/// after it.
fn remove_last(running: &RefCell<Vec<&'static str>>, name: &str) {
    let mut running = running.borrow_mut();
    if let Some(at) = running.iter().rposition(|other| *other == name) {
        running.remove(at);
    }
}

/// Operations by their own names.
static NAMED: LazyLock<HashMap<&'static str, &'static Operation>> =
    LazyLock::new(|| OPERATIONS.iter().copied().flatten().map(|operation| (operation.own_name, operation)).collect());

/// Ends an observer's code, also when it panics.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(|running| running.pop());
    }
}

/// Runs an observer's code, whose operations are not observed.
fn as_observer(run: impl FnOnce()) {
    RUNNING.with_borrow_mut(|running| running.push(OBSERVER));
    let _leaving = Leaving;
    run();
}
