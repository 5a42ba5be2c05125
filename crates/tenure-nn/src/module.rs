//! Modules: the structure, names and state of models.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use tenure_core::{Name, Tag};
use tenure_tensor::{DType, Device, MemoryFormat, Tensor, TensorError, autograd};

use crate::purpose::{self, ModuleGuard};
use crate::{Result, StateError};

/// A component of a module: a parameter, buffer, mode or module, also in an `Option` or a `Vec`.
pub trait Part: Send + Sync {
    /// Calls `visitor` with every parameter and buffer, in PyTorch's order.
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(Member<'a>));

    /// Calls `visitor` with every parameter, buffer and mode, to change them.
    fn visit_mut(&mut self, visitor: &mut dyn FnMut(MemberMut<'_>));
}

/// A struct with parameters, buffers and modules of its own. [`module!`](crate::module!) implements it.
pub trait Module: Part {
    /// Returns handles of all parameters, which an optimizer can hold. A parameter that is used in several places is
    /// listed once.
    fn parameters(&self) -> Vec<Parameter> {
        let mut parameters = Vec::new();
        let mut known = HashSet::new();
        self.visit(&mut |member| {
            if let Member::Parameter(parameter) = member
                && known.insert(parameter.id())
            {
                parameters.push(parameter.clone());
            }
        });
        parameters
    }

    /// Returns all parameters and buffers by name. PyTorch's `state_dict`. A tensor that is used in several places is
    /// listed once.
    fn state(&self) -> Vec<(&str, &Tensor)> {
        let mut state = Vec::new();
        let mut known = HashSet::new();
        self.visit(&mut |member| {
            let name = member.name();
            let tensor = member.tensor();
            if known.insert((name, tensor.id())) {
                state.push((name, tensor));
            }
        });
        state
    }

    /// Returns the number of elements of all parameters.
    fn parameter_count(&self) -> usize {
        self.parameters().iter().map(|parameter| parameter.numel()).sum()
    }

    /// Switches dropout and batch normalisation to training, which is the initial mode.
    fn train(&mut self) {
        self.visit_mut(&mut |member| member.set_training(true));
    }

    /// Switches dropout and batch normalisation to evaluation.
    fn eval(&mut self) {
        self.visit_mut(&mut |member| member.set_training(false));
    }

    /// Drops all gradients. PyTorch's `zero_grad`, which sets them to `None` too.
    fn zero_grad(&self) {
        self.visit(&mut |member| drop(member.tensor().set_grad(None)));
    }

    /// Sets whether gradients of the parameters are computed.
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

    /// Converts all floating-point parameters and buffers. Make the optimizer afterwards: an existing one keeps the old
    /// parameters.
    ///
    /// # Errors
    /// `dtype` is not floating-point; no memory.
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

    /// Moves all parameters and buffers to a device. Make the optimizer afterwards: an existing one keeps the old
    /// parameters.
    ///
    /// # Errors
    /// The device cannot be used; no memory.
    fn to_device(&mut self, device: Device) -> Result<()> {
        self.change(&|tensor| tensor.to_device(device))
    }

    /// Lays out all parameters of the format's rank in that memory format, such as the weights of convolutions with
    /// their channels last. Make the optimizer afterwards: an existing one keeps the old parameters.
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

    /// Replaces every parameter and buffer by the result of `of`, which may be the tensor itself.
    ///
    /// # Errors
    /// The first error of `of`. Tensors replaced before it stay replaced.
    fn change(&mut self, of: &dyn Fn(&Tensor) -> tenure_tensor::Result<Tensor>) -> Result<()> {
        let mut result = Ok(());
        let mut changed = HashMap::new();
        self.visit_mut(&mut |member| {
            if result.is_ok() {
                result = member.change(of, &mut changed);
            }
        });
        Ok(result?)
    }

    /// Loads the values of all parameters and buffers from `source`, converted to their dtypes. PyTorch's
    /// `load_state_dict`.
    ///
    /// # Errors
    /// [`StateError`] if names or sizes differ; an error of the source. The model is unchanged then. Only if memory
    /// runs out midway does it have some of the new values.
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

    /// Loads the names that both the model and `source` have, such as from files that also hold positions. Returns the
    /// model's names that `source` lacks.
    ///
    /// # Errors
    /// [`StateError::Sizes`]; otherwise the errors of [`load`](Self::load).
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
            let name = name.to_owned();
            let expected = tensor.sizes().to_vec();
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

/// A source of a module's values: a file or a map of tensors.
pub trait Source {
    /// Returns the names of all tensors.
    fn names(&self) -> Vec<String>;

    /// Returns the sizes of a tensor, if present.
    fn sizes(&self, name: &str) -> Option<Vec<usize>>;

    /// Checks, without reading it, that a tensor in the source can be read. So a load that would fail midway does not
    /// begin.
    ///
    /// # Errors
    /// The tensor cannot be read.
    fn check(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Returns a tensor.
    ///
    /// # Errors
    /// The tensor is missing or cannot be read.
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
        Ok(self.get(name).cloned().ok_or_else(|| StateError::Names {
            of: "model",
            missing: vec![name.to_owned()],
            unexpected: Vec::new(),
        })?)
    }
}

/// Implements [`Module`] for a struct. Its [parts](Part) are listed in PyTorch's order: parameters, buffers, modules.
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

/// A trained tensor with its name in the model. It dereferences to [`Tensor`].
#[derive(Clone)]
pub struct Parameter {
    name: Arc<str>,
    /// The path of the module that owns it.
    module: Name,
    tensor: Tensor,
}

/// A tensor that a module keeps but the optimizer does not train, with its name in the model.
#[derive(Clone)]
pub struct Buffer {
    name: Arc<str>,
    /// The path of the module that owns it.
    module: Name,
    tensor: Tensor,
}

impl Parameter {
    /// Makes a parameter from a leaf, which then requires a gradient.
    ///
    /// # Errors
    /// The tensor is not floating-point.
    pub fn new(name: impl Into<Arc<str>>, tensor: Tensor) -> tenure_tensor::Result<Self> {
        let (name, module) = named(name.into());
        Ok(Self { name, module, tensor: tensor.requires_grad_(true)? })
    }

    /// Names a leaf, whether or not it requires a gradient. An optimizer steps it when it has one.
    pub fn of_leaf(name: impl Into<Arc<str>>, tensor: Tensor) -> Self {
        let (name, module) = named(name.into());
        Self { name, module, tensor }
    }
}

impl Buffer {
    /// Names a tensor.
    pub fn new(name: impl Into<Arc<str>>, tensor: Tensor) -> Self {
        let (name, module) = named(name.into());
        Self { name, module, tensor }
    }
}

/// Returns a name and its module's path.
fn named(name: Arc<str>) -> (Arc<str>, Name) {
    let module = Name::new(purpose::split(&name).0);
    (name, module)
}

macro_rules! named {
    ($($type:ident),*) => {$(
        impl $type {
            /// Returns the name in the model.
            pub fn name(&self) -> &str {
                &self.name
            }

            /// Marks this thread's allocations as those of the owning module, until the guard is dropped. A layer's
            /// forward pass begins with this call.
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

/// The mode of a module: training or evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    is_training: bool,
}

impl Mode {
    /// Returns whether the module is being trained.
    pub fn is_training(self) -> bool {
        self.is_training
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self { is_training: true }
    }
}

/// A parameter or buffer of a module.
#[derive(Clone, Copy)]
pub enum Member<'a> {
    /// A trained tensor.
    Parameter(&'a Parameter),
    /// A tensor that is kept, not trained.
    Buffer(&'a Buffer),
}

impl<'a> Member<'a> {
    /// Returns the name in the model.
    pub fn name(self) -> &'a str {
        match self {
            Self::Parameter(parameter) => &parameter.name,
            Self::Buffer(buffer) => &buffer.name,
        }
    }

    /// Returns the tensor.
    pub fn tensor(self) -> &'a Tensor {
        match self {
            Self::Parameter(parameter) => &parameter.tensor,
            Self::Buffer(buffer) => &buffer.tensor,
        }
    }
}

/// A parameter, buffer or mode of a module, to be changed.
pub enum MemberMut<'a> {
    /// A trained tensor.
    Parameter(&'a mut Parameter),
    /// A tensor that is kept, not trained.
    Buffer(&'a mut Buffer),
    /// The mode of a layer.
    Mode(&'a mut Mode),
}

impl MemberMut<'_> {
    fn set_training(self, is_training: bool) {
        if let Self::Mode(mode) = self {
            mode.is_training = is_training;
        }
    }

    /// Replaces the tensor. `changed` maps tensors that were already replaced, by identity, to their replacements,
    /// since a tensor may be used in several places.
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
