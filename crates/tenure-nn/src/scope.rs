//! Scopes: the places in a model where parameters are made.

use std::fmt::Display;

use tenure_core::{KeyId, Name, Purpose, Tag};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Scalar, Tensor, autograd};

use crate::{Buffer, Init, Parameter, purpose};

/// The place of a module in a model: the path that its parameters' names begin with, and the way in which they are
/// made.
///
/// ```
/// use tenure_nn::{Module, Scope, layers::Linear};
/// use tenure_tensor::random::Generator;
///
/// let generator = Generator::new(0);
/// let scope = Scope::new(&generator);
/// let layer = Linear::new(&scope.at("head").at(0), 4, 2)?;
/// let names: Vec<&str> = layer.state().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["head.0.weight", "head.0.bias"]);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
#[derive(Clone)]
pub struct Scope {
    path: String,
    dtype: DType,
    device: Device,
    generator: Generator,
    values: Values,
}

/// The initial values of parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Drawn,
    Zeros,
    /// One zero stands for all elements.
    Shapes,
}

impl Scope {
    /// Makes the scope of a whole model, of `float32` on the CPU, with values that `generator` draws.
    pub fn new(generator: &Generator) -> Self {
        Self {
            path: String::new(),
            dtype: DType::F32,
            device: Device::CPU,
            generator: generator.clone(),
            values: Values::Drawn,
        }
    }

    /// Returns the scope with another dtype.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// Returns the scope with another device.
    #[must_use]
    pub fn with_device(&self, device: Device) -> Self {
        Self { device, ..self.clone() }
    }

    /// Returns the scope with zeros as initial values: for a model that is loaded and needs no random numbers.
    #[must_use]
    pub fn zeroed(&self) -> Self {
        Self { values: Values::Zeros, ..self.clone() }
    }

    /// Returns the scope for parameters and buffers that have sizes but take no memory: all elements of a tensor are
    /// one. For a model that computes nothing before [`Module::change`](crate::Module::change) has replaced its
    /// tensors.
    #[must_use]
    pub fn shapes(&self) -> Self {
        Self { values: Values::Shapes, ..self.clone() }
    }

    /// Returns the scope of a module inside this one.
    #[must_use]
    pub fn at(&self, name: impl Display) -> Self {
        Self { path: self.name(name), ..self.clone() }
    }

    /// Returns the dtype of parameters.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the device of parameters.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Makes a parameter of the module.
    ///
    /// # Errors
    /// No memory; `init` does not take the sizes.
    pub fn parameter(&self, name: &str, sizes: &[usize], init: Init) -> Result<Parameter> {
        let name = self.name(name);
        if self.has_shapes_alone() {
            return Parameter::new(name, autograd::no_grad(|| shape(sizes, 0, self.dtype, self.device))?);
        }
        let tensor = {
            let _purpose = purpose::enter(Tag::Weight, &name, "parameter");
            Tensor::empty(sizes, self.dtype, self.device)?
        };
        // Memory for drawing the values does not count as the parameter's.
        let _purpose = Purpose::enter(Tag::Workspace, KeyId::NONE);
        let init = if self.values == Values::Zeros { Init::ZEROS } else { init };
        init.fill(&tensor, &self.generator)?;
        Parameter::new(name, tensor)
    }

    /// Makes a buffer of the module, filled with one value.
    ///
    /// # Errors
    /// No memory.
    pub fn buffer(&self, name: &str, sizes: &[usize], value: impl Into<Scalar>, dtype: DType) -> Result<Buffer> {
        let name = self.name(name);
        let _purpose = purpose::enter(Tag::Weight, &name, "buffer");
        let tensor = match self.has_shapes_alone() {
            true => shape(sizes, value, dtype, self.device)?,
            false => Tensor::full(sizes, value, dtype, self.device)?,
        };
        Ok(Buffer::new(name, tensor))
    }

    /// Returns whether parameters have only shapes, and so cannot be written to.
    pub(crate) fn has_shapes_alone(&self) -> bool {
        self.values == Values::Shapes
    }

    /// Returns the module's path.
    pub(crate) fn path(&self) -> Name {
        Name::new(&self.path)
    }

    fn name(&self, last: impl Display) -> String {
        if self.path.is_empty() { last.to_string() } else { format!("{}.{last}", self.path) }
    }
}

/// Makes a tensor of these sizes that takes the memory of a single element.
fn shape(sizes: &[usize], value: impl Into<Scalar>, dtype: DType, device: Device) -> Result<Tensor> {
    let sizes: Vec<isize> = sizes.iter().map(|size| *size as isize).collect();
    Tensor::full(&[], value, dtype, device)?.expand(&sizes)
}
