//! Optimizers: rules that update parameters, learning rate schedules, and the scaling and clipping of gradients.

/// Lists one function of a kind of device for each floating-point dtype.
macro_rules! of_each_dtype {
    ($kind:ident, $function:ident) => {
        &[
            (tenure_tensor::DeviceKind::$kind, tenure_tensor::DType::F16, $function::<half::f16>),
            (tenure_tensor::DeviceKind::$kind, tenure_tensor::DType::BF16, $function::<half::bf16>),
            (tenure_tensor::DeviceKind::$kind, tenure_tensor::DType::F32, $function::<f32>),
            (tenure_tensor::DeviceKind::$kind, tenure_tensor::DType::F64, $function::<f64>),
        ]
    };
}

/// Makes the kernels of an operation from its functions on the CPU and on CUDA devices.
macro_rules! kernels {
    ($name:literal, $cpu:ident, $cuda:ident) => {
        Kernel::new($name, &[of_each_dtype!(Cpu, $cpu), of_each_dtype!(Cuda, $cuda)])
    };
}

mod adafactor;
mod adagrad;
mod adam;
mod clip;
mod cpu;
mod cuda;
mod edit;
mod lbfgs;
mod line_search;
mod muon;
mod nadam;
mod numbers;
mod offloaded_slots;
mod rmsprop;
mod scaler;
mod schedule;
mod sgd;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use tenure_core::Tag;
use tenure_offload::Engine;
use tenure_tensor::cuda::is_capturing;
use tenure_tensor::{DType, Device, Kernel, Tensor, TensorError, autograd};

pub use adafactor::{ADAFACTOR, Adafactor};
pub use adagrad::{ADAGRAD, Adagrad};
pub use adam::{ADAM, Adam};
pub(crate) use clip::{Clip, LaunchKind, kind, squares_of_each, total_of};
pub use clip::{SUMS_OF_SQUARES, SumsOfSquares, clip_grad_norm, clip_grad_value};
pub use lbfgs::{Lbfgs, LbfgsOptions};
pub use muon::{LrAdjustment, MUON, Muon};
pub use nadam::{NADAM, NAdam};
pub use numbers::Numbers;
pub use rmsprop::{RMSPROP, RMSPROP_CENTERED, RmsProp};
pub use scaler::{GradScaler, ScalerState, unscale_grads};
pub use schedule::Schedule;
pub use sgd::{SGD, Sgd};

use crate::checkpoint::Entry;
use crate::{Parameter, Result, Source, StateError, purpose};
use numbers::{Rate, Steps};
use offloaded_slots::OffloadedSlots;

/// A rule's kernel: a function that updates parameters and their slots by the gradients. It gets at least one
/// parameter; all have the same dtype and device.
pub type StepKernel = fn(&Numbers, &[Stepped<'_>]) -> tenure_tensor::Result<()>;

/// A parameter to be updated, with its gradient and slots. All tensors are contiguous, with the same dtype. For an
/// [elementwise](Rule::is_elementwise) rule they have the same sizes.
#[derive(Clone, Copy)]
pub struct Stepped<'a> {
    /// The parameter, which is updated.
    pub parameter: &'a Tensor,
    /// The gradient.
    pub grad: &'a Tensor,
    /// The rule's slots for the parameter, such as a momentum, which are updated too.
    pub slots: &'a [Tensor],
}

/// A tensor that a rule keeps for a parameter, such as a momentum.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// The name.
    pub name: &'static str,
    /// The initial value of all elements.
    pub value: f64,
    /// The sizes: as many as the parameter's.
    pub sizes: Vec<usize>,
}

/// An update rule, such as [`Adam`] or [`Sgd`]. Its state for a parameter is in *slots*.
pub trait Rule: Send + Sync {
    /// Returns the rule's name.
    fn name(&self) -> &'static str;

    /// Checks the rule's hyperparameters.
    ///
    /// # Errors
    /// A number is invalid.
    fn check(&self) -> tenure_tensor::Result<()>;

    /// Returns the rule's slots for a parameter of these sizes. An [elementwise](Self::is_elementwise) rule's slots have
    /// the parameter's sizes.
    fn slots(&self, sizes: &[usize]) -> Vec<Slot>;

    /// Returns whether the kernel steps each element by itself. Otherwise the rule's slots stay in memory when other
    /// slots are spilled, and its steps cannot be captured.
    fn is_elementwise(&self) -> bool {
        true
    }

    /// Returns the numbers that the kernel takes for step number `step`, from 1. Their count never changes.
    fn numbers(&self, step: u64, lr: f64) -> Vec<f64>;

    /// Returns the kernel that updates parameters and their slots by the gradients and the numbers.
    fn kernel(&self) -> &'static Kernel<StepKernel>;
}

/// An optimizer: updates the parameters of a model by rules. PyTorch's `torch.optim`.
///
/// ```
/// use tenure_nn::Parameter;
/// use tenure_nn::optim::{Optimizer, Sgd};
/// use tenure_tensor::Tensor;
///
/// let x = Parameter::new("x", Tensor::from_slice(&[4.0_f32], &[1])?)?;
/// let mut optimizer = Optimizer::new(vec![x.clone()], 0.25, Sgd::default());
/// x.mul(&*x)?.backward()?;
/// optimizer.step()?;
/// assert_eq!(x.to_vec::<f32>()?, [2.0]);
/// # Ok::<(), tenure_nn::Error>(())
/// ```
pub struct Optimizer {
    groups: Vec<Group>,
    lr_scale: Rate,
    /// Whether the gradients are finite, if a [`GradScaler`] has scaled them down for the next step.
    unscaled: Option<bool>,
}

/// A group of parameters with one rule and one learning rate.
pub struct Group {
    lr: Rate,
    rule: Arc<dyn Rule>,
    /// Whether the rule gets negated gradients.
    maximize: bool,
    members: Vec<GroupMember>,
}

/// The number of steps and the slots of each parameter.
pub(crate) struct OptimizerState(Vec<(u64, Slots)>);

/// A parameter of a group, with its state.
struct GroupMember {
    parameter: Parameter,
    /// The number of steps made.
    steps: Steps,
    slots: Slots,
}

/// A rule's slots for a parameter.
enum Slots {
    /// The slots in memory; empty before the first step.
    InMemory(Vec<Tensor>),
    /// Slots that an offload engine manages.
    Offloaded(OffloadedSlots),
}

/// The position of a parameter in an optimizer: the index of its group, and its index in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ParameterPlace {
    group: usize,
    member: usize,
}

impl Optimizer {
    /// Makes an optimizer of one group of parameters.
    pub fn new(parameters: Vec<Parameter>, lr: f64, rule: impl Rule + 'static) -> Self {
        Self::empty().with_group(parameters, lr, rule)
    }

    /// Makes an optimizer without groups.
    pub fn empty() -> Self {
        Self { groups: Vec::new(), lr_scale: Rate::new(1.0), unscaled: None }
    }

    /// Adds a group of parameters. Parameters that are in a group already stay in it.
    #[must_use]
    pub fn with_group(mut self, parameters: Vec<Parameter>, lr: f64, rule: impl Rule + 'static) -> Self {
        self.add_group(parameters, lr, Arc::new(rule));
        self
    }

    /// Returns the groups, in the order in which they were added.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the groups, to change for example their learning rates.
    pub fn groups_mut(&mut self) -> &mut [Group] {
        &mut self.groups
    }

    /// Returns the parameters of all groups.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> + Clone {
        self.members().map(|member| &member.parameter)
    }

    /// Sets the factor by which every group's learning rate is multiplied, for example from a [`Schedule`].
    pub fn set_lr_scale(&mut self, scale: f64) {
        self.lr_scale.set(scale);
    }

    /// Returns the factor of the learning rates.
    pub fn lr_scale(&self) -> f64 {
        self.lr_scale.get()
    }

    /// Updates every parameter that has a gradient. In a [captured](tenure_tensor::cuda::Captured) step, each replay
    /// uses the learning rates at the time of the replay.
    ///
    /// # Errors
    /// A learning rate or a hyperparameter of a rule is invalid: then no parameter was updated. The rule has no kernel
    /// for a dtype; no memory. Neither the first step of a parameter nor a step on the CPU can be captured.
    pub fn step(&mut self) -> Result<()> {
        let scale = &self.lr_scale;
        self.groups.iter().try_for_each(|group| group.check(scale))?;
        autograd::no_grad(|| self.groups.iter_mut().try_for_each(|group| group.step(scale, 0..group.members.len())))?;
        self.unscaled = None;
        Ok(())
    }

    /// Updates one parameter, as [`step`](Self::step) does, if it has a gradient.
    pub(crate) fn step_at(&mut self, place: ParameterPlace) -> tenure_tensor::Result<()> {
        let group = &mut self.groups[place.group];
        let scale = &self.lr_scale;
        group.check(scale)?;
        autograd::no_grad(|| group.step(scale, place.member..place.member + 1))
    }

    /// Returns all parameters with their positions.
    pub(crate) fn places(&self) -> impl Iterator<Item = (ParameterPlace, &Parameter)> {
        self.groups.iter().enumerate().flat_map(|(group, of)| {
            of.members.iter().enumerate().map(move |(member, of)| (ParameterPlace { group, member }, &of.parameter))
        })
    }

    /// Lets an offload engine manage the slots of parameters whose slots have at least `least_bytes`, in pieces of at
    /// most
    /// `piece_bytes`. Slots that do not exist yet are made. From now on the engine moves them out of memory between
    /// steps, by its plan. The slots of rules that are not elementwise stay in memory.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn spill(&mut self, engine: &Engine, least_bytes: usize, piece_bytes: usize) -> Result<()> {
        let groups = self.groups.iter_mut();
        autograd::no_grad(|| {
            groups.into_iter().try_for_each(|Group { members, rule, .. }| {
                let rule = &**rule;
                members.iter_mut().try_for_each(|member| member.spill(rule, engine, least_bytes, piece_bytes))
            })
        })?;
        Ok(())
    }

    /// Returns the size in bytes of all slots after every parameter has been stepped.
    pub(crate) fn state_bytes(&self) -> usize {
        self.groups.iter().flat_map(|group| group.members.iter().map(|member| member.bytes(&*group.rule))).sum()
    }

    /// Allocates the slots that the first step would allocate.
    ///
    /// # Errors
    /// No memory.
    pub fn prepare(&mut self) -> Result<()> {
        for Group { members, rule, .. } in &mut self.groups {
            members.iter_mut().try_for_each(|member| member.ensure_slots(&**rule))?;
        }
        Ok(())
    }

    /// Drops all gradients. Also forgets that a [`GradScaler`] has scaled them down.
    pub fn zero_grad(&mut self) {
        self.parameters().for_each(|parameter| drop(parameter.set_grad(None)));
        self.unscaled = None;
    }

    /// Returns the optimizer's state by name: `PARAMETER.SLOT` and `PARAMETER.step`. Offloaded slots are
    /// copied.
    ///
    /// # Errors
    /// No memory; offloaded slots cannot be read back.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>> {
        self.entries().into_iter().map(|entry| Ok((entry.name, (entry.make)()?))).collect()
    }

    /// Returns the state as entries, whose tensors are made only when they are used.
    pub(crate) fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries = Vec::new();
        for group in &self.groups {
            for member in group.members.iter().filter(|member| member.steps.get() > 0) {
                let parameter = &member.parameter;
                let steps = member.steps.get() as i64;
                let name = parameter.name();
                let make = Box::new(move || Ok(Tensor::from_slice(&[steps], &[])?));
                entries.push(Entry { name: format!("{name}.step"), sizes: Vec::new(), dtype: DType::I64, make });
                for (index, slot) in group.rule.slots(parameter.sizes()).into_iter().enumerate() {
                    let name = format!("{name}.{}", slot.name);
                    let make = Box::new(move || Ok(member.slot(index)?));
                    entries.push(Entry { name, sizes: slot.sizes, dtype: parameter.dtype(), make });
                }
            }
        }
        entries
    }

    /// Resumes from a [`state`](Self::state) of the same rule and parameters. A parameter that is not in it starts
    /// anew.
    ///
    /// # Errors
    /// [`StateError`]: a slot has other sizes, is missing, or is unknown to the rule. Errors of the source. The
    /// optimizer is unchanged then.
    pub fn load(&mut self, source: &dyn Source) -> Result<()> {
        let state = self.read(source)?;
        self.set_state(state);
        Ok(())
    }

    /// Reads and checks the state that [`load`](Self::load) resumes from.
    pub(crate) fn read(&self, source: &dyn Source) -> Result<OptimizerState> {
        let mut expected = HashSet::new();
        let mut missing = Vec::new();
        for group in &self.groups {
            for parameter in group.members.iter().map(|member| &member.parameter) {
                let name = parameter.name();
                let step = format!("{name}.step");
                let slots = group.rule.slots(parameter.sizes());
                let slots: Vec<String> = slots.iter().map(|slot| format!("{name}.{}", slot.name)).collect();
                if source.sizes(&step).is_some() {
                    missing.extend(slots.iter().filter(|slot| source.sizes(slot).is_none()).cloned());
                }
                expected.insert(step);
                expected.extend(slots);
            }
        }
        let unexpected: Vec<String> = source.names().into_iter().filter(|name| !expected.contains(name)).collect();
        if !missing.is_empty() || !unexpected.is_empty() {
            return Err(StateError::Names { of: "optimizer", missing, unexpected }.into());
        }
        let state: Vec<Vec<_>> = self
            .groups
            .iter()
            .map(|group| group.members.iter().map(|member| member.read(&*group.rule, source)).collect())
            .collect::<Result<_>>()?;
        Ok(OptimizerState(state.into_iter().flatten().collect()))
    }

    /// Continues from a state.
    pub(crate) fn set_state(&mut self, state: OptimizerState) {
        let members = self.groups.iter_mut().flat_map(|group| &mut group.members);
        for (member, (step, slots)) in members.zip(state.0) {
            (member.steps, member.slots) = (Steps::new(step), slots);
        }
    }

    fn members(&self) -> impl Iterator<Item = &GroupMember> + Clone {
        self.groups.iter().flat_map(|group| &group.members)
    }
}

impl Group {
    /// Returns the name of the group's rule.
    pub fn rule_name(&self) -> &'static str {
        self.rule.name()
    }

    /// Returns the learning rate before the schedule's factor.
    pub fn lr(&self) -> f64 {
        self.lr.get()
    }

    /// Sets the learning rate.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr.set(lr);
    }

    /// Checks the learning rate and the rule's hyperparameters.
    fn check(&self, scale: &Rate) -> tenure_tensor::Result<()> {
        not_negative("Optimizer::step", [("the learning rate", self.lr() * scale.get())])?;
        self.rule.check()
    }

    /// Updates the members in a range that have a gradient, with one kernel call for all that have the same number of
    /// steps, dtype and device.
    fn step(&mut self, scale: &Rate, members: Range<usize>) -> tenure_tensor::Result<()> {
        let rule = &self.rule;
        if is_capturing() && !rule.is_elementwise() {
            let reason = format!("a step of {} cannot be captured: step outside of the capture", rule.name());
            return Err(TensorError::argument("Optimizer::step", reason));
        }
        let rates = [&self.lr, scale];
        let mut ready = Vec::new();
        for member in &mut self.members[members] {
            let Some(mut grad) = member.parameter.grad() else { continue };
            if self.maximize {
                grad = grad.neg()?;
            }
            member.ensure_slots(&**rule)?;
            ready.push(ReadyMember::new(member, &grad, rule.is_elementwise())?);
        }
        while let Some(kind) = ready.first().map(ReadyMember::kind) {
            let (batch, rest): (Vec<_>, Vec<_>) = ready.into_iter().partition(|ready| ready.kind() == kind);
            ready = rest;
            let (here, offloaded): (Vec<_>, Vec<_>) = batch.iter().partition(|ready| ready.offloaded().is_none());
            if autograd::is_recomputing() {
                // In a rehearsal, offloaded pieces are moved in and out, and no value changes.
                offloaded.into_iter().try_for_each(|ready| ready.step_offloaded(None))?;
                continue;
            }
            let (steps, dtype, device) = kind;
            let numbers = if is_capturing() {
                let members = batch.iter().map(|ready| ready.member.steps.watch()).collect();
                Numbers::captured(rule, rates.map(Rate::clone), device, members)?
            } else {
                Numbers::new(rule.numbers(steps + 1, rates[0].get() * rates[1].get()))
            };
            let kernel = rule.kernel().find(device.kind(), dtype)?;
            if !here.is_empty() {
                kernel(&numbers, &here.into_iter().map(ReadyMember::stepped).collect::<Vec<_>>())?;
            }
            offloaded.into_iter().try_for_each(|ready| ready.step_offloaded(Some((kernel, &numbers))))?;
            batch.into_iter().try_for_each(ReadyMember::finish)?;
        }
        Ok(())
    }
}

/// A group member to be updated, with contiguous tensors.
struct ReadyMember<'a> {
    member: &'a mut GroupMember,
    /// The order of the dimensions of the tensors here: for an elementwise rule, the order in the parameter's memory.
    dims: Vec<isize>,
    grad: Tensor,
    /// The parameter: a view of its memory if that is dense, else a copy.
    parameter: Tensor,
    /// The slots, likewise views or copies; empty if they are offloaded.
    slots: Vec<Tensor>,
}

impl<'a> ReadyMember<'a> {
    fn new(member: &'a mut GroupMember, grad: &Tensor, is_elementwise: bool) -> tenure_tensor::Result<Self> {
        let rank = member.parameter.rank() as isize;
        let dims = if is_elementwise { dims_in_memory(&member.parameter) } else { (0..rank).collect() };
        let is_contiguous = member.parameter.is_contiguous();
        let dense = |tensor: &Tensor| match is_contiguous {
            true => tensor.contiguous(),
            false => tensor.permute(&dims)?.contiguous(),
        };
        let grad = dense(grad)?;
        let parameter = dense(&member.parameter)?;
        let slots = member.slots.in_memory().iter().map(dense).collect::<tenure_tensor::Result<_>>()?;
        Ok(Self { member, dims, grad, parameter, slots })
    }

    /// Returns the properties that all members of one kernel call share.
    fn kind(&self) -> (u64, DType, Device) {
        (self.member.steps.get(), self.parameter.dtype(), self.parameter.device())
    }

    fn offloaded(&self) -> Option<&OffloadedSlots> {
        match &self.member.slots {
            Slots::InMemory(_) => None,
            Slots::Offloaded(offloaded) => Some(offloaded),
        }
    }

    fn step_offloaded(&self, kernel: Option<(StepKernel, &Numbers)>) -> tenure_tensor::Result<()> {
        self.offloaded().map_or(Ok(()), |offloaded| offloaded.step(kernel, &self.parameter, &self.grad))
    }

    fn stepped(&self) -> Stepped<'_> {
        Stepped { parameter: &self.parameter, grad: &self.grad, slots: &self.slots }
    }

    /// Counts the step, and copies results back to tensors of which copies were updated.
    fn finish(self) -> tenure_tensor::Result<()> {
        let Self { member, dims, parameter, slots, .. } = self;
        let kept = member.slots.in_memory();
        for (to, dense) in iter::once(&*member.parameter).chain(kept).zip(iter::once(&parameter).chain(&slots)) {
            if !dense.storage().is_alias_of(to.storage()) {
                to.permute(&dims)?.copy_(dense)?;
            }
        }
        if parameter.storage().is_alias_of(member.parameter.storage()) {
            member.parameter.bump_version("Optimizer::step");
        }
        if !is_capturing() {
            member.steps.add_one();
        }
        Ok(())
    }
}

impl GroupMember {
    /// Makes the rule's slots if they do not exist yet.
    fn ensure_slots(&mut self, rule: &dyn Rule) -> tenure_tensor::Result<()> {
        // A rule without slots is asked again at each step, which costs it nothing.
        let is_made = match &self.slots {
            Slots::InMemory(slots) => !slots.is_empty() || rule.slots(self.parameter.sizes()).is_empty(),
            Slots::Offloaded(_) => true,
        };
        if is_made {
            return Ok(());
        }
        if is_capturing() {
            let name = self.parameter.name();
            let reason = format!("the first step of {name} makes what {} keeps for it: make one before", rule.name());
            return Err(TensorError::argument("Optimizer::step", reason));
        }
        self.slots = Slots::InMemory(self.make_slots(rule)?);
        Ok(())
    }

    /// Returns the size in bytes of all slots.
    fn bytes(&self, rule: &dyn Rule) -> usize {
        let slots = rule.slots(self.parameter.sizes());
        let elements: usize = slots.iter().map(|slot| slot.sizes.iter().product::<usize>()).sum();
        elements * self.parameter.dtype().size()
    }

    /// Lets an engine manage the slots: see [`Optimizer::spill`].
    fn spill(
        &mut self,
        rule: &dyn Rule,
        engine: &Engine,
        least_bytes: usize,
        piece_bytes: usize,
    ) -> tenure_tensor::Result<()> {
        let is_dense = self.parameter.permute(&dims_in_memory(&self.parameter))?.is_contiguous();
        if let Slots::InMemory(here) = &self.slots
            && rule.is_elementwise()
            && !rule.slots(self.parameter.sizes()).is_empty()
            && is_dense
            && self.bytes(rule) >= least_bytes
        {
            self.slots = Slots::Offloaded(self.offload_slots(rule, here, engine, piece_bytes)?);
        }
        Ok(())
    }

    /// Makes offloaded slots with these values, or, without values, with the rule's initial ones.
    fn offload_slots(
        &self,
        rule: &dyn Rule,
        values: &[Tensor],
        engine: &Engine,
        piece_bytes: usize,
    ) -> tenure_tensor::Result<OffloadedSlots> {
        let slots = rule.slots(self.parameter.sizes());
        let dims = dims_in_memory(&self.parameter);
        let values = values.iter().map(|slot| slot.permute(&dims)?.contiguous()?.reshape(&[-1]));
        let values: Vec<Tensor> = values.collect::<tenure_tensor::Result<_>>()?;
        let dtype = self.parameter.dtype();
        let device = self.parameter.device();
        OffloadedSlots::new(engine, &self.parameter, slots.len(), piece_bytes, |slot, elements| {
            match values.get(slot) {
                Some(values) => values.narrow(0, elements.start, elements.len()),
                None => Tensor::full(&[elements.len()], slots[slot].value, dtype, device),
            }
        })
    }

    /// Returns a slot; a copy, if it is offloaded.
    fn slot(&self, slot: usize) -> tenure_tensor::Result<Tensor> {
        let offloaded = match &self.slots {
            Slots::InMemory(slots) => return Ok(slots[slot].clone()),
            Slots::Offloaded(offloaded) => offloaded,
        };
        let whole = self.parameter.empty_like()?;
        whole.permute(&dims_in_memory(&whole))?.reshape(&[-1])?.copy_(&offloaded.whole(slot)?)?;
        Ok(whole)
    }

    /// Allocates the rule's slots with their initial values.
    fn make_slots(&self, rule: &dyn Rule) -> tenure_tensor::Result<Vec<Tensor>> {
        let parameter = &self.parameter;
        rule.slots(parameter.sizes())
            .into_iter()
            .map(|Slot { name, value, sizes }| {
                let _purpose = purpose::enter(Tag::OptimizerState, parameter.name(), name);
                if sizes == parameter.sizes() {
                    return parameter.full_like(value);
                }
                Tensor::full(&sizes, value, parameter.dtype(), parameter.device())
            })
            .collect()
    }

    /// Reads the number of steps and the slots from a source.
    fn read(&self, rule: &dyn Rule, source: &dyn Source) -> Result<(u64, Slots)> {
        let name = self.parameter.name();
        let step = format!("{name}.step");
        if source.sizes(&step).is_none() {
            return Ok((0, self.slots_like(rule, Vec::new())?));
        }
        let slots = self.make_slots(rule)?;
        for (slot, tensor) in rule.slots(self.parameter.sizes()).iter().zip(&slots) {
            let name = format!("{name}.{}", slot.name);
            let value = source.tensor(&name)?;
            if value.sizes() != tensor.sizes() {
                let expected = tensor.sizes().to_vec();
                let found = value.sizes().to_vec();
                return Err(StateError::Sizes { of: "optimizer", name, expected, found, more: 0 }.into());
            }
            tensor.copy_(&value)?;
        }
        let made = source.tensor(&step)?.item_scalar()?.to_i64();
        let Ok(steps) = u64::try_from(made) else {
            let reason = format!("{step} is {made}: no number of steps");
            return Err(TensorError::argument("Optimizer::load", reason).into());
        };
        Ok((steps, self.slots_like(rule, slots)?))
    }

    /// Makes slots with these values, in memory or offloaded as the current ones are. Without values, the slots have
    /// their initial values or are made at the first step.
    fn slots_like(&self, rule: &dyn Rule, values: Vec<Tensor>) -> tenure_tensor::Result<Slots> {
        Ok(match &self.slots {
            Slots::InMemory(_) => Slots::InMemory(values),
            Slots::Offloaded(offloaded) => {
                Slots::Offloaded(self.offload_slots(rule, &values, offloaded.engine(), offloaded.piece_bytes())?)
            }
        })
    }
}

impl Slot {
    /// Makes a slot.
    pub fn new(name: &'static str, value: f64, sizes: &[usize]) -> Self {
        Self { name, value, sizes: sizes.to_vec() }
    }
}

impl Slots {
    /// Returns the slots that are in memory.
    fn in_memory(&self) -> &[Tensor] {
        match self {
            Self::InMemory(slots) => slots,
            Self::Offloaded(_) => &[],
        }
    }
}

/// Returns the dimensions of a tensor in the order of its memory.
fn dims_in_memory(tensor: &Tensor) -> Vec<isize> {
    let strides = tensor.strides();
    let mut dims: Vec<isize> = (0..strides.len() as isize).collect();
    if !tensor.is_contiguous() {
        dims.sort_by_key(|dim| Reverse(strides[*dim as usize]));
    }
    dims
}

/// Returns the dtype in which a step made of tensor operations computes for a parameter of this dtype.
fn compute_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Returns an error if one of the named numbers is negative or not finite.
fn not_negative<const N: usize>(op: &'static str, numbers: [(&str, f64); N]) -> tenure_tensor::Result<()> {
    match numbers.into_iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
        None => Ok(()),
        Some((name, value)) => {
            Err(TensorError::argument(op, format!("{name} is {value}: a number from 0 on is expected")))
        }
    }
}
