//! `tenure.Tensor`, and the functions on tensors.

mod argument;
mod autograd;
mod buffer;
mod call;
mod conversions;
mod convert;
mod cuda;
mod cuda_array;
mod data;
mod device;
mod dlpack;
mod dtype;
mod extension;
mod function;
mod functions;
mod generator;
mod held;
mod indexing;
mod lbfgs;
mod operators;
mod optimizer;
mod results;

pub(crate) use autograd::{
    NodeObject, autocast_dtype, backward, enter_anomaly_mode, enter_autocast, enter_budget, enter_gradient_mode,
    enter_saved_tensors_hooks, enter_section, grad, is_grad_enabled, is_in_backward, leave_setting, raised,
    set_gradient_mode,
};
pub(crate) use buffer::frombuffer;
pub(crate) use cuda::{
    EventObject, GraphObject, GraphPoolObject, StreamObject, can_access_peer, check_cuda_device, cuda_memory_info,
    cuda_properties, current_device, current_stream, default_stream, device_count, is_stream_capturing, set_device,
    set_stream, simulate_devices, synchronize_device,
};
pub(crate) use data::{asarray, tensor};
pub(crate) use device::DeviceObject;
pub(crate) use dlpack::{bytes as dlpack_bytes, from_dlpack};
pub(crate) use dtype::{
    DTypeObject, allow_tf32_in_convolutions, allow_tf32_in_products, dtype_named, get_default_dtype, promote_types,
    set_default_dtype, tf32_in_convolutions, tf32_in_products,
};
pub(crate) use extension::{ExtensionFunction, check_cuda_source, load_extension, write_headers};
pub(crate) use function::{attach_function, call_function, check_gradients, checkpoint};
pub(crate) use functions::{operation_functions, operation_table};
pub(crate) use generator::{DefaultStatesObject, GeneratorObject, default_generator, manual_seed};
pub(crate) use held::HookObject;
pub(crate) use lbfgs::LbfgsObject;
pub(crate) use optimizer::{OptimizerObject, unscale_gradients};

use std::sync::Weak;
use std::sync::atomic::AtomicBool;

use parking_lot::{Mutex, RwLock};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};
use tenure::core::{DType, Device};
use tenure::tensor::{Tensor, TensorError};

use crate::errors::warn_once;
use held::HeldObject;

/// A multi-dimensional array of elements of one dtype on one device, with its gradient.
///
/// `tenure.tensor(data)` makes one from Python's numbers; `tenure.asarray` and `tenure.from_dlpack` from arrays of other
/// libraries. The class itself makes another tensor on the same elements, for subclasses.
#[pyclass(frozen, subclass, weakref, name = "Tensor", module = "tenure")]
pub(crate) struct TensorObject {
    /// The tensor. Only `data = ...` replaces it.
    tensor: RwLock<Tensor>,
    /// The Python objects that the tensor's graph holds.
    held: Mutex<Vec<Weak<HeldObject>>>,
}

impl TensorObject {
    pub(crate) fn tensor(&self) -> Tensor {
        self.tensor.read().clone()
    }
}

impl From<Tensor> for TensorObject {
    fn from(tensor: Tensor) -> Self {
        Self { tensor: RwLock::new(tensor), held: Mutex::default() }
    }
}

/// Returns a new tensor object.
fn wrapped(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, TensorObject>> {
    Bound::new(py, TensorObject::from(tensor))
}

/// Returns the exception for an error of an operation: the one that Python code raised within it, if that is the reason.
pub(crate) fn exception(error: TensorError) -> PyErr {
    if let Some(raised) = autograd::take_raised(&error) {
        return raised;
    }
    match error {
        TensorError::Index { .. }
        | TensorError::Dim { .. }
        | TensorError::Mask { .. }
        | TensorError::TooManyIndices { .. } => PyIndexError::new_err(error.to_string()),
        error => crate::errors::exception(error),
    }
}

/// Adds the methods that are made from the table of operations to the class.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions::add_methods(&module.py().get_type::<TensorObject>())?;
    for dtype in DType::ALL {
        module.add(dtype.name(), dtype::object(module.py(), dtype)?)?;
    }
    Ok(())
}

#[pymethods]
impl TensorObject {
    #[new]
    #[pyo3(signature = (data))]
    fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        match convert::tensor(data) {
            Some(tensor) => Ok(tensor.detach().into()),
            None => Ok(data::tensor_of(data, None, Device::CPU)?.into()),
        }
    }

    /// The sizes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor().sizes())
    }

    /// Returns the sizes, or the size of one dimension.
    #[pyo3(signature = (dim = None))]
    fn size<'py>(&self, py: Python<'py>, dim: Option<isize>) -> PyResult<Bound<'py, PyAny>> {
        match dim {
            None => self.shape(py).map(Bound::into_any),
            Some(dim) => Ok(self.tensor().size(dim).map_err(exception)?.into_pyobject(py)?.into_any()),
        }
    }

    /// Returns the distance between neighbours along each dimension, or along one, in elements.
    #[pyo3(signature = (dim = None))]
    fn stride<'py>(&self, py: Python<'py>, dim: Option<isize>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.tensor();
        match dim {
            None => PyTuple::new(py, tensor.strides()).map(Bound::into_any),
            Some(dim) => {
                tensor.size(dim).map_err(exception)?;
                let index = if dim < 0 { dim + tensor.rank() as isize } else { dim };
                Ok(tensor.strides()[index.unsigned_abs()].into_pyobject(py)?.into_any())
            }
        }
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.tensor().rank()
    }

    /// Returns the number of dimensions.
    fn dim(&self) -> usize {
        self.tensor().rank()
    }

    /// Returns the number of elements.
    fn numel(&self) -> usize {
        self.tensor().numel()
    }

    /// Returns the number of elements.
    fn nelement(&self) -> usize {
        self.tensor().numel()
    }

    /// The bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.tensor().dtype().size()
    }

    /// Returns the bytes of an element.
    fn element_size(&self) -> usize {
        self.tensor().dtype().size()
    }

    /// The bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        let tensor = self.tensor();
        tensor.numel() * tensor.dtype().size()
    }

    /// The type of the elements.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<DTypeObject>> {
        dtype::object(py, self.tensor().dtype())
    }

    /// The device that the elements are on.
    #[getter]
    fn device(&self) -> DeviceObject {
        DeviceObject::new(self.tensor().device())
    }

    /// Whether the tensor is on a CUDA device.
    #[getter]
    fn is_cuda(&self) -> bool {
        !self.tensor().device().is_cpu()
    }

    /// Returns whether the elements are floating-point numbers.
    fn is_floating_point(&self) -> bool {
        self.tensor().dtype().is_floating()
    }

    /// Returns False: Tenure has no complex numbers.
    fn is_complex(&self) -> bool {
        false
    }

    /// Returns whether the elements lie one after the other, in the order of a memory format.
    ///
    /// Parameters
    /// ----------
    /// memory_format : str, default "contiguous_format"
    ///     With ``"contiguous_format"``, the last dimension is dense; ``"channels_last"`` and ``"channels_last_3d"`` are
    ///     the others.
    #[pyo3(signature = (memory_format = "contiguous_format"))]
    fn is_contiguous(&self, memory_format: &str) -> PyResult<bool> {
        let format = convert::memory_format(memory_format)?;
        Ok(self.tensor().layout().is_contiguous_in(format))
    }

    /// Returns the position of the first element in the storage, in elements.
    fn storage_offset(&self) -> usize {
        self.tensor().layout().offset()
    }

    /// Returns the address of the first element.
    fn data_ptr(&self) -> usize {
        let tensor = self.tensor();
        let offset = tensor.layout().offset() * tensor.dtype().size();
        tensor.storage().lock().as_ptr().addr() + offset
    }

    /// Returns whether both tensors are on one storage.
    fn shares_storage_with(&self, other: &Self) -> bool {
        self.tensor().storage().is_alias_of(other.tensor().storage())
    }

    /// How often this tensor, or another on its storage, was written to in place.
    #[getter]
    fn _version(&self) -> u64 {
        self.tensor().version()
    }

    /// The tensor with its dimensions in reverse order.
    #[getter]
    #[pyo3(name = "T")]
    fn reversed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        let tensor = self.tensor();
        let dims: Vec<isize> = (0..tensor.rank() as isize).rev().collect();
        wrapped(py, tensor.permute(&dims).map_err(exception)?)
    }

    /// The tensor with its last two dimensions exchanged.
    #[getter]
    #[pyo3(name = "mT")]
    fn matrices_transposed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        wrapped(py, self.tensor().mt().map_err(exception)?)
    }

    /// The same elements on the same storage, without the gradient. Assigning another tensor of the same sizes replaces
    /// the elements; graphs that used the old ones keep them.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        wrapped(py, self.tensor().detach())
    }

    #[setter]
    fn set_data(&self, data: &Self) -> PyResult<()> {
        let old = self.tensor();
        if !old.is_leaf() {
            return Err(PyRuntimeError::new_err("data can be replaced in leaves only: detach() first"));
        }
        let new = data.tensor().detach().requires_grad_(old.requires_grad()).map_err(exception)?;
        *self.tensor.write() = new;
        Ok(())
    }

    /// Returns the tensor in another dtype, on another device, or as another tensor is. Itself if nothing changes.
    ///
    /// Parameters
    /// ----------
    /// *args : dtype, device or Tensor
    /// dtype : dtype, default None
    /// device : device, default None
    /// non_blocking : bool, default False
    ///     Changes nothing, and warns once: copies wait for nothing that they need not wait for.
    /// copy : bool, default False
    ///     Whether a copy is returned also if nothing changes.
    /// memory_format : str, default None
    ///     ``"contiguous_format"``, ``"channels_last"`` or ``"channels_last_3d"``; ``"preserve_format"`` changes nothing.
    #[pyo3(signature = (*args, dtype = None, device = None, non_blocking = false, copy = false, memory_format = None))]
    fn to<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        dtype: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        mut non_blocking: bool,
        copy: bool,
        memory_format: Option<&str>,
    ) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        let mut to_dtype = dtype::asked(dtype)?;
        let mut to_device = device.filter(|device| !device.is_none()).map(|device| device::asked(Some(device)));
        for argument in args.iter() {
            if let Some(dtype) = dtype::converted(&argument) {
                to_dtype = Some(dtype);
            } else if let Some(other) = convert::tensor(&argument) {
                to_dtype = Some(other.dtype());
                to_device = Some(Ok(other.device()));
            } else if let Ok(argument) = argument.cast::<pyo3::types::PyBool>() {
                // PyTorch's positional `non_blocking`.
                non_blocking |= argument.is_true();
            } else if let Some(device) = device::converted(&argument)? {
                to_device = Some(Ok(device));
            } else if !argument.is_none() {
                let text =
                    format!("to(): a dtype, a device or a tensor is needed, not {}", argument.get_type().name()?);
                return Err(PyTypeError::new_err(text));
            }
        }
        if non_blocking {
            static WARNED: AtomicBool = AtomicBool::new(false);
            let text = c"non_blocking=True changes nothing: copies wait for nothing that they need not wait for";
            warn_once(py, &WARNED, text)?;
        }
        let to_device = to_device.transpose()?;
        let format = memory_format.filter(|format| *format != "preserve_format");
        let format = format.map(convert::memory_format).transpose()?;
        let result = py.detach(|| {
            let mut result = tensor.clone();
            if let Some(dtype) = to_dtype {
                result = result.to_dtype(dtype)?;
            }
            if let Some(device) = to_device {
                result = result.to_device(device)?;
            }
            if let Some(format) = format {
                result = result.contiguous_in(format)?;
            }
            if copy && result.is_same(&tensor) { result.copy() } else { Ok(result) }
        });
        let result = result.map_err(exception)?;
        if result.is_same(&tensor) { Ok(slf.clone()) } else { wrapped(py, result) }
    }

    /// Returns the tensor on a CUDA device: the current one, or the given one.
    #[pyo3(signature = (device = None))]
    fn cuda<'py>(slf: &Bound<'py, Self>, device: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, Self>> {
        let device = match device.filter(|device| !device.is_none()) {
            None => device::current(),
            Some(device) => device::asked(Some(device))?,
        };
        Self::moved(slf, device)
    }

    /// Returns the tensor on the CPU.
    fn cpu<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::moved(slf, Device::CPU)
    }

    /// Returns the tensor as a NumPy array on the same memory. It must be on the CPU, and require no gradient.
    #[pyo3(signature = (*, force = false))]
    fn numpy<'py>(slf: &Bound<'py, Self>, force: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        if force {
            let here = py.detach(|| tensor.detach().to_device(Device::CPU)).map_err(exception)?;
            return array(wrapped(py, here)?.as_any());
        }
        if tensor.requires_grad() {
            let text = "a tensor that requires a gradient has no NumPy array: use detach().numpy()";
            return Err(PyRuntimeError::new_err(text));
        }
        if !tensor.device().is_cpu() {
            let text = format!("NumPy cannot use memory on {}: use cpu() first", tensor.device());
            return Err(PyTypeError::new_err(text));
        }
        array(slf.as_any())
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let array = Self::numpy(slf, false)?;
        let array = match dtype.filter(|dtype| !dtype.is_none()) {
            None => array,
            Some(dtype) => {
                let arguments = PyDict::new(py);
                arguments.set_item("copy", false)?;
                let converted = array.call_method("astype", (dtype,), Some(&arguments))?;
                if copy == Some(false) && !converted.is(&array) {
                    return Err(PyValueError::new_err("another dtype needs a copy, which copy=False forbids"));
                }
                converted
            }
        };
        if copy == Some(true) { array.call_method0("copy") } else { Ok(array) }
    }

    /// NumPy leaves operators with a tensor to the tensor.
    #[classattr]
    fn __array_priority__() -> u32 {
        1000
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let tensor = slf.get().tensor();
        // Rust writes a tensor exactly as PyTorch does.
        slf.py().detach(|| tensor.to_string()).replace("dtype=torch.", "dtype=tenure.")
    }

    fn __format__<'py>(slf: &Bound<'py, Self>, spec: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        // As in PyTorch, a tensor without dimensions is formatted as its number, and a parameter is not.
        if slf.get().tensor().rank() == 0 && slf.get_type().is(py.get_type::<Self>()) {
            return Self::item(slf)?.call_method1("__format__", (spec,));
        }
        py.get_type::<pyo3::types::PyString>().call1((slf,))?.call_method1("__format__", (spec,))
    }

    fn __copy__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        rebuilt(slf, slf.get().tensor().detach())
    }

    #[pyo3(signature = (memo))]
    fn __deepcopy__<'py>(slf: &Bound<'py, Self>, memo: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = slf.get().tensor();
        if !tensor.is_leaf() {
            let text =
                "only leaves, which no operation with a gradient made, can be copied by deepcopy: detach() first";
            return Err(PyRuntimeError::new_err(text));
        }
        let copy = slf.py().detach(|| tensor.detach().copy()).map_err(exception)?;
        let copy = rebuilt(slf, copy)?;
        memo.set_item(slf.as_ptr().addr(), &copy)?;
        Ok(copy)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        if !tensor.is_leaf() {
            return Err(PyRuntimeError::new_err("only leaves can be pickled: detach() first"));
        }
        let bytes = py.detach(|| tensor.to_bytes()).map_err(exception)?;
        let class = slf.get_type();
        let state = (
            class,
            PyBytes::new(py, &bytes),
            PyTuple::new(py, tensor.sizes())?,
            tensor.dtype().name(),
            tensor.device().to_string(),
            tensor.requires_grad(),
        );
        Ok((py.import("tenure._native")?.getattr("rebuild_tensor")?, state.into_pyobject(py)?))
    }
}

impl TensorObject {
    /// Returns the tensor on a device: the object itself if it is there.
    fn moved<'py>(slf: &Bound<'py, Self>, device: Device) -> PyResult<Bound<'py, Self>> {
        let tensor = slf.get().tensor();
        if tensor.device() == device {
            return Ok(slf.clone());
        }
        wrapped(slf.py(), slf.py().detach(|| tensor.to_device(device)).map_err(exception)?)
    }
}

/// Returns a tensor of the class of `object`, which requires a gradient if `object` does.
fn rebuilt<'py>(object: &Bound<'py, TensorObject>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let requires_grad = object.get().tensor().requires_grad();
    let tensor = wrapped(py, tensor.requires_grad_(requires_grad).map_err(exception)?)?;
    of_class(&object.get_type(), tensor, requires_grad)
}

/// Returns a tensor as an object of a class.
fn of_class<'py>(
    class: &Bound<'py, PyType>,
    tensor: Bound<'py, TensorObject>,
    requires_grad: bool,
) -> PyResult<Bound<'py, PyAny>> {
    if class.is(class.py().get_type::<TensorObject>()) {
        return Ok(tensor.into_any());
    }
    let object = class.call_method1("__new__", (class, tensor))?;
    object.call_method1("requires_grad_", (requires_grad,))?;
    Ok(object)
}

/// Makes a tensor from its pickled parts.
#[pyfunction]
pub(crate) fn rebuild_tensor<'py>(
    class: &Bound<'py, PyType>,
    bytes: &[u8],
    sizes: Vec<usize>,
    dtype: &str,
    device: &str,
    requires_grad: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let dtype: DType = dtype.parse().map_err(|error: tenure::core::DTypeError| exception(error.into()))?;
    let tensor = Tensor::from_bytes(bytes, &sizes, dtype).map_err(exception)?;
    let tensor = tensor.to_device(device::parsed(device)?).map_err(exception)?;
    let tensor = tensor.requires_grad_(requires_grad).map_err(exception)?;
    of_class(class, wrapped(class.py(), tensor)?, requires_grad)
}

/// Returns a NumPy array on the memory of a tensor.
fn array<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    tensor.py().import("numpy")?.call_method1("from_dlpack", (tensor,))
}
