//! Gradients: the backward pass, hooks, and operations whose formulas are written in Python.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tenure::tensor::autocast::{self, Autocast};
use tenure::tensor::autograd::{self, Anomaly, BackwardOptions, GradMode, Node, Recipes, SavedHooks};
use tenure::tensor::observe::{self, RunningSection};
use tenure::tensor::{AutogradError, Tensor, TensorError};

use super::dtype::{self, DTypeObject};
use super::{TensorObject, convert, exception, wrapped};

/// The node name of errors that stand for an exception of Python code.
const RAISED_IN_PYTHON: &str = "Python";

thread_local! {
    /// The exception that Python code raised within a backward pass of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// The settings that this thread has entered and not left.
    static SETTINGS: RefCell<HashMap<u64, Setting>> = RefCell::default();
    static ENTERED: Cell<u64> = const { Cell::new(0) };
    /// The number of backward passes that this thread runs, one within another.
    static PASSES: Cell<usize> = const { Cell::new(0) };
}

/// A setting of a thread, which holds until it is dropped.
#[expect(dead_code, reason = "the guards act when they are dropped")]
enum Setting {
    GradientMode(GradMode),
    Anomaly(Anomaly),
    SavedTensorsHooks(SavedHooks),
    Autocast(Autocast),
    Section(RunningSection),
    Budget(Recipes, SavedHooks),
}

/// Keeps an exception until the pass in which it was raised returns, and returns an error that stands for it.
pub(crate) fn raised(error: PyErr) -> TensorError {
    let reason = error.to_string();
    RAISED.set(Some(error));
    AutogradError::Other { node: RAISED_IN_PYTHON.to_owned(), reason }.into()
}

/// Returns the exception that an error stands for, if Python code raised one.
pub(super) fn take_raised(error: &TensorError) -> Option<PyErr> {
    match error {
        TensorError::Autograd(AutogradError::Other { node, .. }) if node == RAISED_IN_PYTHON => RAISED.take(),
        _ => None,
    }
}

/// Drops an exception that nothing reports any more, and with it the tensors of its frames. A checkpoint stops its
/// function, when it runs again, by an error that passes through Python code.
pub(super) fn forget_raised() {
    drop(RAISED.take());
}

/// Runs a backward pass without Python's lock.
fn run_pass<T: Send>(py: Python<'_>, pass: impl FnOnce() -> tenure::tensor::Result<T> + Send) -> PyResult<T> {
    let found = {
        let _running = RunningPass::begin();
        py.detach(pass).map_err(exception)
    };
    forget_raised();
    found
}

/// A backward pass of this thread, which ends also when it panics.
struct RunningPass;

impl RunningPass {
    fn begin() -> Self {
        PASSES.set(PASSES.get() + 1);
        Self
    }
}

impl Drop for RunningPass {
    fn drop(&mut self) {
        PASSES.set(PASSES.get() - 1);
    }
}

/// Returns whether a backward pass runs on this thread.
#[pyfunction]
pub(crate) fn is_in_backward() -> bool {
    PASSES.get() > 0
}

/// Makes this thread's operations belong to a budget's steps. Returns the number to leave the setting with.
pub(crate) fn enter_budget(recipes: Recipes, hooks: SavedHooks) -> u64 {
    enter(Setting::Budget(recipes, hooks))
}

fn enter(setting: Setting) -> u64 {
    let number = ENTERED.get() + 1;
    ENTERED.set(number);
    SETTINGS.with_borrow_mut(|settings| settings.insert(number, setting));
    number
}

/// Switches this thread's recording of graphs on or off. Returns the number to leave the setting with.
#[pyfunction]
pub(crate) fn enter_gradient_mode(enabled: bool) -> u64 {
    enter(Setting::GradientMode(GradMode::enter(enabled)))
}

/// Switches this thread's recording of graphs on or off, until the innermost setting of it is left.
#[pyfunction]
pub(crate) fn set_gradient_mode(enabled: bool) {
    autograd::set_grad_enabled(enabled);
}

/// Makes this thread's backward passes raise an error when a gradient has a NaN. Returns the number to leave with.
#[pyfunction]
pub(crate) fn enter_anomaly_mode() -> u64 {
    enter(Setting::Anomaly(Anomaly::detect()))
}

/// Makes this thread's operations keep the tensors that backward needs in the form that `pack` returns; `unpack` returns
/// a tensor from it. Returns the number to leave with.
#[pyfunction]
pub(crate) fn enter_saved_tensors_hooks(pack: Py<PyAny>, unpack: Py<PyAny>) -> u64 {
    let hooks = SavedHooks::enter(
        move |tensor, _| {
            Python::attach(|py| Ok(pack.bind(py).call1((TensorObject::from(tensor.clone()),))?.unbind()))
                .map_err(raised)
        },
        move |packed: &Py<PyAny>| {
            Python::attach(|py| {
                let unpacked = unpack.bind(py).call1((packed,))?;
                convert::tensor(&unpacked).ok_or_else(|| not_a_tensor(&unpacked))
            })
            .map_err(raised)
        },
    );
    enter(Setting::SavedTensorsHooks(hooks))
}

/// Makes this thread's operations compute in a 16-bit dtype where that is enough; `None` leaves all dtypes as they are.
/// Returns the number to leave the setting with.
#[pyfunction]
#[pyo3(signature = (dtype))]
pub(crate) fn enter_autocast(dtype: Option<&DTypeObject>) -> u64 {
    enter(Setting::Autocast(Autocast::enter(dtype.map(DTypeObject::dtype))))
}

/// Returns the dtype that this thread's operations compute in where that is enough; `None` outside of autocast.
#[pyfunction]
pub(crate) fn autocast_dtype(py: Python<'_>) -> PyResult<Option<Py<DTypeObject>>> {
    autocast::dtype().map(|dtype| dtype::object(py, dtype)).transpose()
}

/// Names a section of this thread's run in profiles. Returns the number to leave it with.
#[pyfunction]
pub(crate) fn enter_section(name: &str) -> u64 {
    enter(Setting::Section(observe::section(name)))
}

/// Leaves a setting of this thread.
#[pyfunction]
pub(crate) fn leave_setting(number: u64) {
    drop(SETTINGS.with_borrow_mut(|settings| settings.remove(&number)));
}

/// Returns whether this thread's operations record a graph for backward.
#[pyfunction]
pub(crate) fn is_grad_enabled() -> bool {
    autograd::is_grad_enabled()
}

/// A recorded operation: the function that computes the gradients of its inputs.
#[pyclass(frozen, name = "Node", module = "tenure.autograd")]
pub(crate) struct NodeObject {
    node: Arc<Node>,
}

#[pymethods]
impl NodeObject {
    /// Returns the name of the operation.
    fn name(&self) -> &str {
        self.node.name()
    }

    /// For each input, the node that its gradient goes to, or `None`, and the number of that node's output.
    #[getter]
    fn next_functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let next = self.node.next().map(|next| match next {
            Some((node, output)) => (Some(Self { node: Arc::clone(node) }), output),
            None => (None, 0),
        });
        PyTuple::new(py, next.collect::<Vec<_>>())
    }

    fn __eq__(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.node).addr() >> 4
    }

    fn __repr__(&self) -> String {
        format!("<{} node>", self.node.name())
    }
}

/// Converts tensors and `None`s.
pub(super) fn optional_tensors(objects: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Tensor>>> {
    let mut tensors = Vec::new();
    for object in objects.try_iter()? {
        let object = object?;
        tensors.push(match convert::tensor(&object) {
            Some(tensor) => Some(tensor),
            None if object.is_none() => None,
            None => return Err(not_a_tensor(&object)),
        });
    }
    Ok(tensors)
}

pub(super) fn tensors(objects: &Bound<'_, PyAny>) -> PyResult<Vec<Tensor>> {
    let mut tensors = Vec::new();
    for object in objects.try_iter()? {
        let object = object?;
        tensors.push(convert::tensor(&object).ok_or_else(|| not_a_tensor(&object))?);
    }
    Ok(tensors)
}

pub(super) fn not_a_tensor(object: &Bound<'_, PyAny>) -> PyErr {
    let name = object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("a tensor is needed, not {name}"))
}

/// Adds the gradients of `outputs` to the leaves that they were computed from, or to `inputs` alone.
#[pyfunction]
pub(crate) fn backward(
    py: Python<'_>,
    outputs: &Bound<'_, PyAny>,
    grads: &Bound<'_, PyAny>,
    retain_graph: bool,
    create_graph: bool,
    inputs: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let outputs = tensors(outputs)?;
    let grads = optional_tensors(grads)?;
    let inputs = inputs.map(tensors).transpose()?;
    let options = BackwardOptions { retain_graph, create_graph, allow_unused: true };
    run_pass(py, || {
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        let grads: Vec<Option<&Tensor>> = grads.iter().map(Option::as_ref).collect();
        let Some(inputs) = &inputs else { return autograd::backward(&outputs, &grads, options) };
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        for (input, grad) in inputs.iter().zip(autograd::grad(&outputs, &inputs, &grads, options)?) {
            let Some(grad) = grad else { continue };
            let sum = match input.grad() {
                Some(old) => {
                    if create_graph {
                        old.add(&grad)?
                    } else {
                        autograd::no_grad(|| old.add(&grad))?
                    }
                }
                None => grad,
            };
            input.set_grad(Some(sum))?;
        }
        Ok(())
    })
}

/// Returns the gradients of `outputs` with respect to `inputs`; `None` for an input that no output depends on.
#[pyfunction]
pub(crate) fn grad<'py>(
    py: Python<'py>,
    outputs: &Bound<'py, PyAny>,
    inputs: &Bound<'py, PyAny>,
    grads: &Bound<'py, PyAny>,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let outputs = tensors(outputs)?;
    let inputs = tensors(inputs)?;
    let grads = optional_tensors(grads)?;
    let options = BackwardOptions { retain_graph, create_graph, allow_unused };
    let found = run_pass(py, || {
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let grads: Vec<Option<&Tensor>> = grads.iter().map(Option::as_ref).collect();
        autograd::grad(&outputs, &inputs, &grads, options)
    });
    let found = found?.into_iter().map(|grad| grad.map(TensorObject::from));
    PyTuple::new(py, found.collect::<Vec<_>>())
}

#[pymethods]
impl TensorObject {
    /// Whether gradients with respect to this tensor are computed.
    #[getter]
    fn requires_grad(&self) -> bool {
        self.tensor().requires_grad()
    }

    #[setter]
    fn set_requires_grad(&self, requires_grad: bool) -> PyResult<()> {
        self.tensor().requires_grad_(requires_grad).map(drop).map_err(exception)
    }

    /// Sets whether gradients with respect to this leaf are computed, and returns the tensor.
    #[pyo3(signature = (requires_grad = true))]
    fn requires_grad_(slf: Bound<'_, Self>, requires_grad: bool) -> PyResult<Bound<'_, Self>> {
        slf.get().set_requires_grad(requires_grad)?;
        Ok(slf)
    }

    /// The sum of the gradients that `backward` computed, or `None`.
    #[getter]
    fn grad<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Self>>> {
        self.tensor().grad().map(|grad| wrapped(py, grad)).transpose()
    }

    #[setter]
    fn set_grad(&self, py: Python<'_>, grad: Option<&Self>) -> PyResult<()> {
        let grad = grad.map(Self::tensor);
        let tensor = self.tensor();
        py.detach(|| tensor.set_grad(grad).map(drop)).map_err(exception)
    }

    /// The operation that made this tensor; `None` for a leaf.
    #[getter]
    fn grad_fn(&self) -> Option<NodeObject> {
        self.tensor().grad_fn().map(|node| NodeObject { node })
    }

    /// Whether no operation with a gradient made this tensor.
    #[getter]
    fn is_leaf(&self) -> bool {
        self.tensor().is_leaf()
    }

    /// Adds the gradients of this tensor to the leaves that it was computed from.
    ///
    /// Parameters
    /// ----------
    /// gradient : Tensor, default None
    ///     The gradient of this tensor; by default 1, for a tensor of one element.
    /// retain_graph : bool, default None
    ///     Whether the graph can be gone through again; by default, if `create_graph`.
    /// create_graph : bool, default False
    ///     Whether the gradients are differentiable themselves.
    /// inputs : sequence of Tensor, default None
    ///     The tensors whose gradients are added to; by default all leaves.
    #[pyo3(signature = (gradient = None, retain_graph = None, create_graph = false, inputs = None))]
    fn backward<'py>(
        slf: &Bound<'py, Self>,
        gradient: Option<&Bound<'py, Self>>,
        retain_graph: Option<bool>,
        create_graph: bool,
        inputs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let inputs = match inputs {
            Some(inputs) if inputs.cast::<Self>().is_ok() => Some(PyTuple::new(py, [inputs])?.into_any()),
            inputs => inputs.cloned(),
        };
        let outputs = PyTuple::new(py, [slf])?;
        let grads = PyTuple::new(py, [gradient])?;
        backward(py, &outputs, &grads, retain_graph.unwrap_or(create_graph), create_graph, inputs.as_ref())
    }

    /// Returns a tensor of the same elements, on the same storage, that passes no gradient on.
    fn detach<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        wrapped(py, self.tensor().detach())
    }

    /// Makes this tensor a leaf that requires no gradient, and returns it.
    fn detach_(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        let detached = slf.get().tensor().detach();
        *slf.get().tensor.write() = detached;
        slf
    }

    /// Makes `backward` keep the gradient of this tensor in `grad`, though it is no leaf.
    fn retain_grad(&self) -> PyResult<()> {
        self.tensor().retain_grad().map_err(exception)
    }
}
