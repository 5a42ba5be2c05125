//! Python functions within graphs: formulas of operations, checkpoints, and checks of gradients.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tenure::tensor::Tensor;
use tenure::tensor::autograd::{self, Gradcheck, SavedHandle};

use super::autograd::{forget_raised, not_a_tensor, optional_tensors, raised, tensors};
use super::held::HeldObject;
use super::{TensorObject, convert, exception};

/// Makes `outputs` the results of an operation on `inputs` whose formula is a Python function. It is called with the
/// saved tensors and with the gradients of the outputs, `None` where nothing depends on an output, and returns a
/// gradient or `None` for each input.
#[pyfunction]
pub(crate) fn attach_function(
    name: String,
    outputs: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyAny>,
    saved: &Bound<'_, PyAny>,
    formula: Py<PyAny>,
) -> PyResult<()> {
    let formula = HeldObject::new(formula);
    // The garbage collector sees the formula through the output that is the last to live.
    for output in outputs.try_iter()? {
        output?.cast::<TensorObject>()?.get().hold(&formula);
    }
    let outputs = tensors(outputs)?;
    let inputs = tensors(inputs)?;
    let saved = optional_tensors(saved)?;
    let output_refs: Vec<&Tensor> = outputs.iter().collect();
    let input_refs: Vec<&Tensor> = inputs.iter().collect();
    autograd::attach_all(&output_refs, name, &input_refs, |saver| {
        let mut handles: Vec<Option<SavedHandle>> = Vec::with_capacity(saved.len());
        for tensor in &saved {
            handles.push(match tensor {
                None => None,
                Some(tensor) => Some(match outputs.iter().position(|output| output.is_same(tensor)) {
                    Some(output) => saver.save_output(tensor, output)?,
                    None => saver.save(tensor)?,
                }),
            });
        }
        let count = outputs.len();
        Ok(move |context: &autograd::Context<'_>| {
            let mut saved = Vec::with_capacity(handles.len());
            for handle in &handles {
                saved.push(handle.map(|handle| context.unpack(handle)).transpose()?);
            }
            let grads: Vec<_> = (0..count).map(|output| context.grad_if_any(output).cloned()).collect();
            let given = Python::attach(|py| {
                let saved = PyList::new(py, saved.into_iter().map(|tensor| tensor.map(TensorObject::from)))?;
                let grads = PyList::new(py, grads.into_iter().map(|grad| grad.map(TensorObject::from)))?;
                optional_tensors(&formula.call(py, (saved, grads))?)
            });
            Ok(given.map_err(raised)?.into_iter().collect())
        })
    })
    .map_err(exception)
}

/// Calls a Python function of tensors that returns a tensor or a sequence of tensors.
pub(crate) fn call_function(function: &Py<PyAny>, inputs: &[Tensor]) -> tenure::tensor::Result<Vec<Tensor>> {
    Python::attach(|py| {
        // A checkpoint before this one may have left one.
        forget_raised();
        let inputs = PyTuple::new(py, inputs.iter().cloned().map(TensorObject::from))?;
        let result = function.bind(py).call1(inputs)?;
        match convert::tensor(&result) {
            Some(tensor) => Ok(vec![tensor]),
            None if result.try_iter().is_ok() => tensors(&result),
            None => Err(not_a_tensor(&result)),
        }
    })
    .map_err(raised)
}

/// Runs `function` on `inputs`, and keeps the inputs rather than the tensors that backward needs, which are computed
/// again.
#[pyfunction]
pub(crate) fn checkpoint<'py>(
    py: Python<'py>,
    function: Py<PyAny>,
    inputs: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let inputs = tensors(inputs)?;
    let outputs = py.detach(|| {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        autograd::checkpoint(&inputs, move |inputs| call_function(&function, inputs))
    });
    let outputs = outputs.map_err(exception)?.into_iter().map(TensorObject::from);
    PyTuple::new(py, outputs.collect::<Vec<_>>())
}

/// Compares gradients with finite differences; of the gradients too, if `of_gradients`.
#[pyfunction]
pub(crate) fn check_gradients(
    py: Python<'_>,
    function: Py<PyAny>,
    inputs: &Bound<'_, PyAny>,
    eps: f64,
    atol: f64,
    rtol: f64,
    of_gradients: bool,
) -> PyResult<()> {
    let inputs = tensors(inputs)?;
    let options = Gradcheck { step: eps, absolute: atol, relative: rtol };
    let check = |inputs: &[Tensor]| call_function(&function, inputs);
    let checked = py.detach(|| match of_gradients {
        false => autograd::gradcheck(check, &inputs, options),
        true => autograd::gradgradcheck(check, &inputs, options),
    });
    checked.map_err(exception)
}
