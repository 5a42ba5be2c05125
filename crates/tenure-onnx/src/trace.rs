//! Traces: the operations that a function calls, and the tensors that pass between them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use tenure_core::{Device, Generation, Layout, Site};
use tenure_tensor::observe::{self, Observer};
use tenure_tensor::operation::{Argument, Kind, Operation, Output};
use tenure_tensor::{DType, Scalar, Tensor, TensorError, autograd};

use crate::{Error, Result};

/// The index of a tensor in [`Trace::slots`].
pub(crate) type Slot = usize;

/// The calls of a function.
#[derive(Default)]
pub(crate) struct Trace {
    /// The calls, in the order in which they ended.
    pub(crate) calls: Vec<Call>,
    /// The tensors.
    pub(crate) slots: Vec<SlotInfo>,
    /// The outputs of the function.
    pub(crate) outputs: Vec<Slot>,
}

impl Trace {
    /// Returns the number of the function's inputs, which are the first tensors.
    pub(crate) fn inputs(&self) -> usize {
        self.slots.iter().take_while(|slot| matches!(slot.origin, Origin::Input)).count()
    }

    /// Returns how many times as many bytes another trace's tensors may have.
    pub(crate) fn growth(&self) -> i64 {
        /// A trace keeps all of its tensors: this is no burden for most machines.
        const FEW_BYTES: usize = 1 << 28;
        let bytes = self.slots.iter().map(|slot| slot.sizes.iter().product::<usize>() * slot.dtype.size());
        (FEW_BYTES / bytes.sum::<usize>().max(1)) as i64
    }
}

/// A tensor of a trace. Writing to a tensor makes another one of it.
pub(crate) struct SlotInfo {
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<usize>,
    pub(crate) origin: Origin,
    /// The same tensor as the result of an operation that the one that returned it is composed of, which no kernel
    /// wrote to since.
    pub(crate) part: Option<Slot>,
}

/// The place that a tensor comes from.
pub(crate) enum Origin {
    /// It is an input of the function.
    Input,
    /// It was there before the trace began.
    Existing(Tensor),
    /// A call made it.
    Call,
    /// It cannot be exported, for this reason.
    Unknown(String),
}

/// A call of an operation.
pub(crate) struct Call {
    pub(crate) operation: &'static Operation,
    pub(crate) arguments: Vec<Recorded>,
    pub(crate) results: Vec<Slot>,
    /// The results, if the operation has no tensor as an argument.
    pub(crate) constants: Vec<Tensor>,
    /// The operations that it is composed of.
    pub(crate) parts: Vec<Self>,
    /// The place of the call: empty, or " at " and the place.
    pub(crate) at: String,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Recorded {
    None,
    Tensor(Slot),
    Tensors(Vec<Slot>),
    Scalar(Scalar),
    Ints(Vec<i64>),
    Text(String),
    DType(DType),
    Device(Device),
    Generator,
}

/// Returns the place of the program's code that runs.
pub(crate) type Locate<'a> = dyn Fn() -> Option<String> + Send + Sync + 'a;

/// A function that is exported.
pub(crate) type Exported<'a> = dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>, TensorError> + 'a;

/// Runs a function and returns what it called.
///
/// # Errors
/// The errors of the function; it reads elements of tensors that depend on its inputs.
pub(crate) fn trace(
    inputs: &[Tensor],
    locate: Option<Arc<Locate<'static>>>,
    function: &mut Exported<'_>,
) -> Result<Trace> {
    // Storages get increasing generations, so that this one divides those before from those of the function.
    let begin = Tensor::scalar(0, DType::Bool)?.storage().generation();
    let tracer = Arc::new(Tracer { thread: thread::current().id(), locate, state: Mutex::new(State::new(begin)) });
    for input in inputs {
        tracer.with(|state| state.add(input, Origin::Input));
    }
    let observing = observe::start(tracer.clone());
    let outputs = autograd::no_grad(|| function(inputs));
    drop(observing);
    tracer.with(|state| {
        if let Some(error) = state.mistake.take() {
            return Err(Error::Function(error));
        }
        let outputs = outputs?;
        let outputs = outputs.iter().map(|output| state.slot(output)).collect();
        let mut trace = std::mem::take(&mut state.trace);
        trace.outputs = outputs;
        Ok(trace)
    })
}

/// Writes down what one thread calls.
struct Tracer {
    thread: ThreadId,
    locate: Option<Arc<Locate<'static>>>,
    state: Mutex<State>,
}

/// The elements of a tensor: no other tensor has them at the same time.
type Identity = (Generation, Layout, DType);

struct State {
    begin: Generation,
    trace: Trace,
    /// The tensors, and the count of writes to their storage when they were made.
    known: HashMap<Identity, (u64, Slot)>,
    /// The same for each handle: a view of a whole tensor has the elements of the tensor, and is another one.
    handles: HashMap<usize, (u64, Slot)>,
    /// The storages that were written to.
    written: HashSet<Generation>,
    /// The calls that have not ended.
    open: Vec<Open>,
    /// The tensors of the slots. They are alive until the trace ends, so that no operation writes its result over one
    /// that is not needed.
    alive: Vec<Tensor>,
    /// The results of operations that the outermost one is composed of: slots, counts of writes, elements.
    parts: Vec<(Slot, u64, Vec<u8>)>,
    mistake: Option<String>,
}

struct Open {
    call: Call,
    /// The number of tensors that were known when the call began.
    known: usize,
    /// The tensor that an operation in place writes to.
    target: Option<Tensor>,
}

impl Tracer {
    fn with<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the place of the code that runs: empty, or " at " and the place.
    fn place(&self) -> String {
        let module = Site::current().module();
        let place = self.locate.as_ref().and_then(|locate| locate());
        match place.or_else(|| (!module.as_str().is_empty()).then(|| module.as_str().to_owned())) {
            Some(place) => format!(" at {place}"),
            None => String::new(),
        }
    }
}

impl Observer for Tracer {
    fn begin(&self, operation: &'static Operation, arguments: &[Argument<'_>]) {
        if thread::current().id() == self.thread {
            let at = self.place();
            self.with(|state| state.begin(operation, arguments, at));
        }
    }

    fn end(&self, _: &'static Operation, result: Option<Result<&Output, &TensorError>>) {
        if thread::current().id() == self.thread {
            self.with(|state| state.end(result));
        }
    }

    fn literal(&self, tensor: &Tensor) {
        if thread::current().id() == self.thread {
            self.with(|state| state.add(tensor, Origin::Existing(tensor.clone())));
        }
    }

    fn read(&self, tensor: &Tensor) {
        if thread::current().id() != self.thread {
            return;
        }
        let at = self.place();
        self.with(|state| {
            if !state.is_constant(tensor) {
                state.refuse_read("reads elements of a tensor (item(), tolist(), or a condition)", &at);
            }
        });
    }
}

impl State {
    fn new(begin: Generation) -> Self {
        Self {
            begin,
            trace: Trace::default(),
            known: HashMap::new(),
            handles: HashMap::new(),
            written: HashSet::new(),
            open: Vec::new(),
            alive: Vec::new(),
            parts: Vec::new(),
            mistake: None,
        }
    }

    fn begin(&mut self, operation: &'static Operation, arguments: &[Argument<'_>], at: String) {
        let arguments: Vec<Recorded> = arguments.iter().map(|argument| self.record(argument)).collect();
        let target = operation_target(operation, &arguments).and_then(|slot| self.keep_old_value(slot));
        let call = Call { operation, arguments, results: Vec::new(), constants: Vec::new(), parts: Vec::new(), at };
        self.open.push(Open { call, known: self.trace.slots.len(), target });
    }

    /// Returns the tensor of a slot that is written to next. The elements of one that was there before the trace are
    /// copied.
    fn keep_old_value(&mut self, slot: Slot) -> Option<Tensor> {
        let target = self.alive.get(slot)?.clone();
        let generation = target.storage().generation();
        for info in &mut self.trace.slots {
            if let Origin::Existing(tensor) = &info.origin
                && tensor.storage().generation() == generation
                && let Ok(copy) = tensor.copy()
            {
                info.origin = Origin::Existing(copy);
            }
        }
        Some(target)
    }

    fn end(&mut self, result: Option<Result<&Output, &TensorError>>) {
        let Some(Open { mut call, known, target }) = self.open.pop() else { return };
        let Some(Ok(output)) = result else { return };
        match output {
            Output::InPlace => {
                if let Some(target) = &target {
                    self.written.insert(target.storage().generation());
                    call.results = vec![self.result(target, known)];
                }
            }
            Output::Bool(_) => {
                let are_constant = call.arguments.iter().all(|argument| match argument {
                    Recorded::Tensor(slot) => self.alive.get(*slot).is_some_and(|tensor| self.is_constant(tensor)),
                    _ => true,
                });
                if self.open.is_empty() && !are_constant {
                    self.refuse_read(&format!("compares tensors by {}()", call.operation.name), &call.at);
                }
            }
            Output::Tensor(tensor) => call.results = vec![self.result(tensor, known)],
            Output::Tensors(tensors) => {
                call.results = tensors.iter().map(|tensor| self.result(tensor, known)).collect()
            }
        }
        if is_creation(&call) {
            let copies = match output {
                Output::Tensor(tensor) => tensor.copy().map(|copy| vec![copy]),
                _ => Ok(Vec::new()),
            };
            call.constants = copies.unwrap_or_default();
        }
        if self.open.is_empty() {
            self.check_elements();
        } else {
            self.keep_elements(&call);
        }
        match self.open.last_mut() {
            Some(outer) => outer.call.parts.push(call),
            None => self.trace.calls.push(call),
        }
    }

    /// Returns a slot for a result of an operation; `known` tensors were known before it began.
    fn result(&mut self, tensor: &Tensor, known: usize) -> Slot {
        let same = self.known.get(&identity(tensor)).copied().filter(|(version, _)| *version == tensor.version());
        let part = same.map(|(_, slot)| slot).filter(|slot| *slot >= known && self.is_as_made(*slot));
        let handle = self.handles.get(&tensor.id()).copied();
        let slot = self.add(tensor, Origin::Call);
        self.trace.slots[slot].part = part;
        // Parts of an operation with a mapping are not exported, so they give no value to a tensor that has one.
        if let Some(same) = same.filter(|(_, slot)| *slot < known && !self.open.is_empty()) {
            self.known.insert(identity(tensor), same);
            if let Some(handle) = handle {
                self.handles.insert(tensor.id(), handle);
            }
        }
        slot
    }

    /// Returns whether a tensor has the elements that an operation gave it: no kernel wrote to it since.
    fn is_as_made(&self, slot: Slot) -> bool {
        let made = self.parts.iter().find(|(made, ..)| *made == slot);
        made.is_none_or(|(.., bytes)| self.alive[slot].to_bytes().is_ok_and(|now| now == *bytes))
    }

    /// Keeps the elements of a result of an operation that another one is composed of.
    fn keep_elements(&mut self, call: &Call) {
        for slot in &call.results {
            let tensor = self.alive[*slot].clone();
            if let Ok(bytes) = tensor.to_bytes() {
                self.parts.push((*slot, tensor.version(), bytes));
            }
        }
    }

    /// Refuses tensors to which an operation wrote, after another one that it is composed of had made them. A kernel
    /// does so without the count of writes.
    fn check_elements(&mut self) {
        for (slot, version, bytes) in std::mem::take(&mut self.parts) {
            let tensor = &self.alive[slot];
            if tensor.version() == version && tensor.to_bytes().is_ok_and(|now| now != bytes) {
                let reason = "an operation computed a tensor within a kernel".to_owned();
                self.trace.slots[slot].origin = Origin::Unknown(reason);
            }
        }
    }

    fn record(&mut self, argument: &Argument<'_>) -> Recorded {
        match *argument {
            Argument::None => Recorded::None,
            Argument::Tensor(tensor) => Recorded::Tensor(self.slot(tensor)),
            Argument::Tensors(tensors) => Recorded::Tensors(tensors.iter().map(|tensor| self.slot(tensor)).collect()),
            Argument::Scalar(number) => Recorded::Scalar(number),
            Argument::Ints(numbers) => Recorded::Ints(numbers.iter().map(|number| *number as i64).collect()),
            Argument::Sizes(sizes) => Recorded::Ints(sizes.iter().map(|size| *size as i64).collect()),
            Argument::Text(text) => Recorded::Text(text.to_owned()),
            Argument::DType(dtype) => Recorded::DType(dtype),
            Argument::Device(device) => Recorded::Device(device),
            Argument::Generator(_) => Recorded::Generator,
        }
    }

    /// Returns whether a tensor's elements were there before the trace, and are no input's.
    fn is_constant(&self, tensor: &Tensor) -> bool {
        let generation = tensor.storage().generation();
        let slots = self.trace.slots.iter().zip(&self.alive);
        let mut inputs = slots.filter(|(info, _)| matches!(info.origin, Origin::Input));
        generation < self.begin
            && !self.written.contains(&generation)
            && !inputs.any(|(_, input)| input.storage().generation() == generation)
    }

    /// Makes it an error that the function looks at elements.
    fn refuse_read(&mut self, does: &str, at: &str) {
        self.mistake.get_or_insert_with(|| {
            format!("the function {does}{at}: a graph has no values of the program; use where() or operations")
        });
    }

    /// Returns the slot of an argument.
    fn slot(&mut self, tensor: &Tensor) -> Slot {
        if let Some((version, slot)) = self.handles.get(&tensor.id())
            && *version == tensor.version()
        {
            return *slot;
        }
        let identity = identity(tensor);
        match self.known.get(&identity) {
            Some((version, slot)) if *version == tensor.version() => return *slot,
            Some(_) => {
                let writer = tensor.writes().last_writer();
                let reason = format!(
                    "{writer} wrote to a {} through a view of it, or another tensor on its storage: write to the whole \
                     tensor, or use an operation that is not in place",
                    kind(tensor)
                );
                return self.add(tensor, Origin::Unknown(reason));
            }
            None => {}
        }
        let origin = if self.written.contains(&identity.0) {
            Origin::Unknown(format!(
                "a {} shares its storage with a tensor that was written to: use an operation that is not in place",
                kind(tensor)
            ))
        } else if identity.0 > self.begin {
            Origin::Unknown(format!(
                "a {} was made within the function of values of the program: make it before the export, or of \
                 operations such as full and arange",
                kind(tensor)
            ))
        } else {
            Origin::Existing(tensor.clone())
        };
        self.add(tensor, origin)
    }

    fn add(&mut self, tensor: &Tensor, origin: Origin) -> Slot {
        let slot = self.trace.slots.len();
        self.trace.slots.push(SlotInfo { dtype: tensor.dtype(), sizes: tensor.sizes().to_vec(), origin, part: None });
        self.known.insert(identity(tensor), (tensor.version(), slot));
        self.handles.insert(tensor.id(), (tensor.version(), slot));
        self.alive.push(tensor.clone());
        slot
    }
}

fn identity(tensor: &Tensor) -> Identity {
    (tensor.storage().generation(), tensor.layout().clone(), tensor.dtype())
}

fn kind(tensor: &Tensor) -> String {
    format!("tensor ({}, {:?})", tensor.dtype(), tensor.sizes())
}

/// Returns the tensor that an operation in place writes to.
fn operation_target(operation: &Operation, arguments: &[Recorded]) -> Option<Slot> {
    match (operation.result, arguments.first()) {
        (tenure_tensor::operation::ResultKind::InPlace, Some(Recorded::Tensor(slot))) => Some(*slot),
        _ => None,
    }
}

/// Returns whether the result depends on no tensor and no random number.
fn is_creation(call: &Call) -> bool {
    let has_tensor =
        call.arguments.iter().any(|argument| matches!(argument, Recorded::Tensor(_) | Recorded::Tensors(_)));
    let is_random = call.operation.parameters.iter().any(|parameter| parameter.kind == Kind::Generator);
    !has_tensor && !is_random && !call.operation.own_name.starts_with("empty")
}
