//! The L-BFGS optimizer: Rust's, with the parameters and options that `tenure.optim.LBFGS` has in Python.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::nn::Parameter;
use tenure::nn::optim::{Lbfgs, LbfgsOptions};
use tenure::tensor::Tensor;

use super::TensorObject;
use super::autograd::{raised, tensors};
use super::optimizer::{Hyperparameters, exception};

/// An L-BFGS optimizer of Rust. Every call gives it the parameters and options in the dictionary of `param_groups`.
#[pyclass(frozen, name = "Lbfgs", module = "tenure._native")]
pub(crate) struct LbfgsObject(Mutex<Lbfgs>);

#[pymethods]
impl LbfgsObject {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(Lbfgs::new(Vec::new(), LbfgsOptions::default())))
    }

    /// Moves the parameters to a lower value of `closure`, which computes the gradients and returns the loss as a float.
    fn step(&self, py: Python<'_>, group: &Bound<'_, PyDict>, closure: Py<PyAny>) -> PyResult<()> {
        let settings = Settings::new(group)?;
        py.detach(|| {
            let mut optimizer = self.lock()?;
            settings.give_to(&mut optimizer);
            let step = optimizer.step(|| {
                let loss = Python::attach(|py| closure.bind(py).call0()?.extract::<f64>()).map_err(raised)?;
                Ok(Tensor::from_slice(&[loss], &[])?)
            });
            step.map(drop).map_err(exception)
        })
    }

    /// Returns the state by name.
    fn state(&self, py: Python<'_>) -> PyResult<Vec<(String, TensorObject)>> {
        let state = py.detach(|| self.lock()?.state().map_err(exception))?;
        Ok(state.into_iter().map(|(name, tensor)| (name, tensor.into())).collect())
    }

    /// Continues from a state: tensors with these names.
    fn load(
        &self,
        py: Python<'_>,
        group: &Bound<'_, PyDict>,
        names: Vec<String>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let settings = Settings::new(group)?;
        let state: BTreeMap<String, Tensor> = names.into_iter().zip(tensors(values)?).collect();
        py.detach(|| {
            let mut optimizer = self.lock()?;
            settings.give_to(&mut optimizer);
            optimizer.load(&state).map_err(exception)
        })
    }
}

impl LbfgsObject {
    fn lock(&self) -> PyResult<MutexGuard<'_, Lbfgs>> {
        self.0.try_lock().ok_or_else(|| {
            PyRuntimeError::new_err("the optimizer makes a step: use it and its state when the step is over")
        })
    }
}

/// The parameters and options at a call.
struct Settings {
    parameters: Vec<Parameter>,
    options: LbfgsOptions,
}

impl Settings {
    fn new(group: &Bound<'_, PyDict>) -> PyResult<Self> {
        let settings = Hyperparameters(group);
        let parameters = tensors(&settings.get::<Bound<'_, PyAny>>("params")?)?.into_iter().enumerate();
        Ok(Self {
            parameters: parameters.map(|(number, tensor)| Parameter::of_leaf(number.to_string(), tensor)).collect(),
            options: LbfgsOptions {
                lr: settings.get("lr")?,
                max_iterations: settings.get("max_iter")?,
                max_evaluations: settings.get("max_eval")?,
                tolerance_grad: settings.get("tolerance_grad")?,
                tolerance_change: settings.get("tolerance_change")?,
                history_size: settings.get("history_size")?,
                strong_wolfe: settings.get::<Option<Bound<'_, PyAny>>>("line_search_fn")?.is_some(),
            },
        })
    }

    fn give_to(self, optimizer: &mut Lbfgs) {
        optimizer.set_parameters(self.parameters);
        optimizer.set_options(self.options);
    }
}
