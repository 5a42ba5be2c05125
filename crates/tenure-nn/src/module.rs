//! What models are made of, and its names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use tenure_core::{Name, Tag};
use tenure_tensor::{DType, Device, MemoryFormat, Tensor, TensorError, autograd};

use crate::purpose::{self, ModuleGuard};
use crate::{Result, StateError};

/// What modules are put together from: parameters, buffers, modes, modules, also in an `Option` or a `Vec`.
pub trait Part: Send + Sync {
    /// Shows `visitor` every parameter and buffer, in PyTorch's order.
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(Member<'a>));

    /// The same to change them, and the modes.
    fn visit_mut(&mut self, visitor: &mut dyn FnMut(MemberMut<'_>));
}

/// Something with parameters, buffers and modules of its own. [`module!`](crate::module!) implements it for a struct.
pub trait Module: Part {
    /// All parameters: handles, which an optimizer can hold. One that stands in several places is there once.
    fn parameters(&self) -> Vec<Parameter> {
        let (mut parameters, mut known) = (Vec::new(), HashSet::new());
        self.visit(&mut |member| {
            if let Member::Parameter(parameter) = member
                && known.insert(parameter.id())
            {
                parameters.push(parameter.clone());
            }
        });
        parameters
    }

    /// All parameters and buffers by name. PyTorch's `state_dict`. What stands in several places is there once.
    fn state(&self) -> Vec<(&str, &Tensor)> {
        let (mut state, mut known) = (Vec::new(), HashSet::new());
        self.visit(&mut |member| {
            let (name, tensor) = (member.name(), member.tensor());
            if known.insert((name, tensor.id())) {
                state.push((name, tensor));
            }
        });
        state
    }

    /// Number of elements of all parameters.
    fn parameter_count(&self) -> usize {
        self.parameters().iter().map(|parameter| parameter.numel()).sum()
    }

    /// Makes dropout and batch normalisation behave as in training, as they do at first.
    fn train(&mut self) {
        self.visit_mut(&mut |member| member.set_training(true));
    }

    /// Makes dropout and batch normalisation behave as in use.
    fn eval(&mut self) {
        self.visit_mut(&mut |member| member.set_training(false));
    }

    /// Forgets all gradients. PyTorch's `zero_grad`, which sets them to none as well.
    fn zero_grad(&self) {
        self.visit(&mut |member| drop(member.tensor().set_grad(None)));
    }

    /// Says whether gradients with respect to the parameters are computed.
    ///
    /// # Errors
    /// No memory.
    fn set_requires_grad(&self, requires_grad: bool) -> Result<()> {
        let mut result = Ok(());
        self.visit(&mut |member| {
            if let (Ok(()), Member::Parameter(parameter)) = (&result, member) {
                result = parameter.tensor.clone().requires_grad_(requires_grad).map(drop);
            }
        });
        Ok(result?)
    }

    /// Converts what is floating. An optimizer made before has the old parameters: make it afterwards.
    ///
    /// # Errors
    /// `dtype` is not floating; no memory.
    fn to_dtype(&mut self, dtype: DType) -> Result<()> {
        if !dtype.is_floating() {
            let reason = format!("a module is converted to a floating dtype, got {dtype}");
            return Err(TensorError::argument("Module::to_dtype", reason).into());
        }
        self.change(&|tensor| match tensor.dtype().is_floating() {
            true => tensor.to_dtype(dtype),
            false => Ok(tensor.clone()),
        })
    }

    /// Brings all parameters and buffers to a device. An optimizer made before has the old parameters: make it afterwards.
    ///
    /// # Errors
    /// The device cannot be used; no memory.
    fn to_device(&mut self, device: Device) -> Result<()> {
        self.change(&|tensor| tensor.to_device(device))
    }

    /// Lays out all parameters that a memory format is for in its order, such as the weights of convolutions with their
    /// channels last. An optimizer made before has the old parameters: make it afterwards.
    ///
    /// # Errors
    /// No memory.
    fn to_format(&mut self, format: MemoryFormat) -> Result<()> {
        let rank = match format {
            MemoryFormat::ChannelsLast2d => 4,
            MemoryFormat::ChannelsLast3d => 5,
            MemoryFormat::Contiguous => return self.change(&Tensor::contiguous),
        };
        self.change(&|tensor| if tensor.rank() == rank { tensor.contiguous_in(format) } else { Ok(tensor.clone()) })
    }

    /// Replaces every parameter and buffer by what `of` makes of it, which may be itself.
    ///
    /// # Errors
    /// Those of `of`; what was replaced before stays so.
    fn change(&mut self, of: &dyn Fn(&Tensor) -> tenure_tensor::Result<Tensor>) -> Result<()> {
        let (mut result, mut changed) = (Ok(()), HashMap::new());
        self.visit_mut(&mut |member| {
            if result.is_ok() {
                result = member.change(of, &mut changed);
            }
        });
        Ok(result?)
    }

    /// Takes the values of all parameters and buffers from `source`, converted to their dtypes. PyTorch's
    /// `load_state_dict`.
    ///
    /// # Errors
    /// [`StateError`], if names or sizes differ; what the source cannot read. The model is then as it was. Only where
    /// memory ends in the middle, it has some of the new values.
    fn load(&self, source: &dyn Source) -> Result<()> {
        let state = self.state();
        let missing = state.iter().map(|(name, _)| *name).filter(|name| source.sizes(name).is_none());
        let missing: Vec<String> = missing.map(str::to_owned).collect();
        let known: HashSet<&str> = state.iter().map(|(name, _)| *name).collect();
        let unexpected: Vec<String> = source.names().into_iter().filter(|name| !known.contains(&**name)).collect();
        if !missing.is_empty() || !unexpected.is_empty() {
            return Err(StateError::Names { of: "model", missing, unexpected }.into());
        }
        self.load_known(source).map(drop)
    }

    /// The same for the names that both have, such as of files that hold positions too. Returns the model's names that
    /// `source` has not.
    ///
    /// # Errors
    /// [`StateError::Sizes`]; else as [`load`](Self::load).
    fn load_known(&self, source: &dyn Source) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        let mut found = Vec::new();
        let mut differing = Vec::new();
        for (name, tensor) in self.state() {
            match source.sizes(name) {
                Some(sizes) if sizes == tensor.sizes() => found.push((name, tensor)),
                Some(sizes) => differing.push((name, tensor, sizes)),
                None => missing.push(name.to_owned()),
            }
        }
        let more = differing.len().saturating_sub(1);
        if let Some((name, tensor, found)) = differing.into_iter().next() {
            let (name, expected) = (name.to_owned(), tensor.sizes().to_vec());
            return Err(StateError::Sizes { of: "model", name, expected, found, more }.into());
        }
        found.iter().try_for_each(|(name, _)| source.check(name))?;
        for (name, tensor) in found {
            let value = source.tensor(name)?;
            autograd::no_grad(|| tensor.copy_(&value))?;
        }
        Ok(missing)
    }
}

/// Where a module's values come from: a file, or a map of tensors.
pub trait Source {
    /// Everything that it has.
    fn names(&self) -> Vec<String>;

    /// The sizes of one tensor, if it is there.
    fn sizes(&self, name: &str) -> Option<Vec<usize>>;

    /// Finds out without reading whether a tensor that is there can be read, so that nobody begins to load what fails
    /// in the middle.
    ///
    /// # Errors
    /// It cannot.
    fn check(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// The tensor.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    fn tensor(&self, name: &str) -> Result<Tensor>;
}

impl Source for BTreeMap<String, Tensor> {
    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }

    fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.get(name).map(|tensor| tensor.sizes().to_vec())
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        let missing = || StateError::Names { of: "model", missing: vec![name.to_owned()], unexpected: Vec::new() };
        Ok(self.get(name).cloned().ok_or_else(missing)?)
    }
}

/// Implements [`Module`] for a struct, whose [parts](Part) are listed in PyTorch's order: parameters, buffers, modules.
/// Other fields are left out.
///
/// ```
/// use tenure_nn::{Buffer, Mode, Module, Parameter, module};
///
/// struct Scale {
///     weight: Parameter,
///     bias: Option<Parameter>,
///     steps: Buffer,
///     mode: Mode,
///     epsilon: f64,
/// }
/// module!(Scale { weight, bias, steps, mode });
/// ```
#[macro_export]
macro_rules! module {
    ($type:ty { $($field:ident),* $(,)? }) => {
        impl $crate::Module for $type {}

        impl $crate::Part for $type {
            #[allow(unused_variables, reason = "a module may have nothing")]
            fn visit<'a>(&'a self, visitor: &mut dyn FnMut($crate::Member<'a>)) {
                $($crate::Part::visit(&self.$field, visitor);)*
            }

            #[allow(unused_variables, reason = "a module may have nothing")]
            fn visit_mut(&mut self, visitor: &mut dyn FnMut($crate::MemberMut<'_>)) {
                $($crate::Part::visit_mut(&mut self.$field, visitor);)*
            }
        }
    };
}

/// A tensor that is trained, with its name in the model. It can stand wherever a `&Tensor` is asked for.
#[derive(Clone)]
pub struct Parameter {
    name: Arc<str>,
    /// The path of the module that has it.
    module: Name,
    tensor: Tensor,
}

/// A tensor that a module keeps but nobody trains, with its name in the model.
#[derive(Clone)]
pub struct Buffer {
    name: Arc<str>,
    /// The path of the module that has it.
    module: Name,
    tensor: Tensor,
}

impl Parameter {
    /// A leaf that requires a gradient.
    ///
    /// # Errors
    /// It is not floating.
    pub fn new(name: impl Into<Arc<str>>, tensor: Tensor) -> tenure_tensor::Result<Self> {
        let (name, module) = named(name.into());
        Ok(Self { name, module, tensor: tensor.requires_grad_(true)? })
    }
}

impl Buffer {
    /// A tensor with a name.
    pub fn new(name: impl Into<Arc<str>>, tensor: Tensor) -> Self {
        let (name, module) = named(name.into());
        Self { name, module, tensor }
    }
}

/// A name, and the path of the module in it.
fn named(name: Arc<str>) -> (Arc<str>, Name) {
    let module = Name::new(purpose::split(&name).0);
    (name, module)
}

macro_rules! named {
    ($($type:ident),*) => {$(
        impl $type {
            /// Its name in the model.
            pub fn name(&self) -> &str {
                &self.name
            }

            /// Says that what this thread does is done by the module that has it: by a layer, whose forward pass enters it
            /// first.
            pub fn enter_module(&self) -> ModuleGuard {
                purpose::module(self.module)
            }
        }

        impl Deref for $type {
            type Target = Tensor;

            fn deref(&self) -> &Tensor {
                &self.tensor
            }
        }

        impl Part for $type {
            fn visit<'a>(&'a self, visitor: &mut dyn FnMut(Member<'a>)) {
                visitor(Member::$type(self));
            }

            fn visit_mut(&mut self, visitor: &mut dyn FnMut(MemberMut<'_>)) {
                visitor(MemberMut::$type(self));
            }
        }
    )*};
}
named!(Parameter, Buffer);

/// Whether a module is being trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    is_training: bool,
}

impl Mode {
    /// Whether it is.
    pub fn is_training(self) -> bool {
        self.is_training
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self { is_training: true }
    }
}

/// What a module has.
#[derive(Clone, Copy)]
pub enum Member<'a> {
    /// Something trained.
    Parameter(&'a Parameter),
    /// Something kept.
    Buffer(&'a Buffer),
}

impl<'a> Member<'a> {
    /// Its name in the model.
    pub fn name(self) -> &'a str {
        match self {
            Self::Parameter(parameter) => &parameter.name,
            Self::Buffer(buffer) => &buffer.name,
        }
    }

    /// Its value.
    pub fn tensor(self) -> &'a Tensor {
        match self {
            Self::Parameter(parameter) => &parameter.tensor,
            Self::Buffer(buffer) => &buffer.tensor,
        }
    }
}

/// What a module has, to be changed.
pub enum MemberMut<'a> {
    /// Something trained.
    Parameter(&'a mut Parameter),
    /// Something kept.
    Buffer(&'a mut Buffer),
    /// How it behaves.
    Mode(&'a mut Mode),
}

impl MemberMut<'_> {
    fn set_training(self, is_training: bool) {
        if let Self::Mode(mode) = self {
            mode.is_training = is_training;
        }
    }

    /// `changed` has tensors by their identity, and what became of them, since one may stand in several places.
    fn change(
        self,
        of: &dyn Fn(&Tensor) -> tenure_tensor::Result<Tensor>,
        changed: &mut HashMap<usize, [Tensor; 2]>,
    ) -> tenure_tensor::Result<()> {
        let (name, tensor) = match self {
            Self::Parameter(Parameter { name, tensor, .. }) | Self::Buffer(Buffer { name, tensor, .. }) => {
                (name, tensor)
            }
            Self::Mode(_) => return Ok(()),
        };
        if let Some([_, known]) = changed.get(&tensor.id()) {
            *tensor = known.clone();
            return Ok(());
        }
        let _purpose = purpose::enter(Tag::Weight, name, "convert");
        let after = autograd::no_grad(|| of(tensor))?;
        if after.is_same(tensor) {
            return Ok(());
        }
        let after = after.requires_grad_(tensor.requires_grad())?;
        let before = std::mem::replace(tensor, after.clone());
        changed.insert(before.id(), [before, after]);
        Ok(())
    }
}

impl Part for Mode {
    fn visit<'a>(&'a self, _: &mut dyn FnMut(Member<'a>)) {}

    fn visit_mut(&mut self, visitor: &mut dyn FnMut(MemberMut<'_>)) {
        visitor(MemberMut::Mode(self));
    }
}

impl<M: Module + ?Sized> Module for Box<M> {}

impl<P: Part + ?Sized> Part for Box<P> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(Member<'a>)) {
        (**self).visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut dyn FnMut(MemberMut<'_>)) {
        (**self).visit_mut(visitor);
    }
}

macro_rules! collections {
    ($($type:ident),*) => {$(
        impl<P: Part> Part for $type<P> {
            fn visit<'a>(&'a self, visitor: &mut dyn FnMut(Member<'a>)) {
                self.iter().for_each(|part| part.visit(visitor));
            }

            fn visit_mut(&mut self, visitor: &mut dyn FnMut(MemberMut<'_>)) {
                self.iter_mut().for_each(|part| part.visit_mut(visitor));
            }
        }
    )*};
}
collections!(Option, Vec);
