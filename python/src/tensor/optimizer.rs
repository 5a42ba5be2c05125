//! Optimizers: Rust's, with the parameters and hyperparameters that `tenure.optim` has in Python.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tenure::nn::Parameter;
use tenure::nn::optim::{
    Adafactor, Adagrad, Adam, LrAdjustment, Muon, NAdam, Optimizer, RmsProp, Rule, Sgd, unscale_grads,
};
use tenure::tensor::Tensor;

use super::TensorObject;
use super::autograd::tensors;

/// The hyperparameters of a group: a dictionary of `param_groups`.
pub(super) struct Hyperparameters<'a, 'py>(pub(super) &'a Bound<'py, PyDict>);

impl<'py> Hyperparameters<'_, 'py> {
    pub(super) fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<T> {
        let value = self.0.get_item(name)?.ok_or_else(|| PyValueError::new_err(format!("a group has no {name:?}")))?;
        value.extract().map_err(Into::into)
    }

    /// Returns whether the parameters ascend their gradients.
    fn maximize(&self) -> PyResult<bool> {
        // Muon has no such setting.
        if self.0.contains("maximize")? { self.get("maximize") } else { Ok(false) }
    }

    /// Returns the rule that the optimizer class `name` of Python steps the group by.
    fn rule(&self, name: &str) -> PyResult<Arc<dyn Rule>> {
        Ok(match name {
            "SGD" => Arc::new(Sgd {
                momentum: self.get("momentum")?,
                dampening: self.get("dampening")?,
                weight_decay: self.get("weight_decay")?,
                nesterov: self.get("nesterov")?,
            }),
            "Adam" => Arc::new(Adam {
                betas: self.get::<[f64; 2]>("betas")?.into(),
                eps: self.get("eps")?,
                weight_decay: self.get("weight_decay")?,
                is_decoupled: self.get("decoupled_weight_decay")?,
            }),
            "Adagrad" => Arc::new(Adagrad {
                lr_decay: self.get("lr_decay")?,
                weight_decay: self.get("weight_decay")?,
                initial_accumulator_value: self.get("initial_accumulator_value")?,
                eps: self.get("eps")?,
            }),
            "RMSprop" => Arc::new(RmsProp {
                alpha: self.get("alpha")?,
                eps: self.get("eps")?,
                weight_decay: self.get("weight_decay")?,
                momentum: self.get("momentum")?,
                centered: self.get("centered")?,
            }),
            "NAdam" => Arc::new(NAdam {
                betas: self.get::<[f64; 2]>("betas")?.into(),
                eps: self.get("eps")?,
                weight_decay: self.get("weight_decay")?,
                momentum_decay: self.get("momentum_decay")?,
                is_decoupled: self.get("decoupled_weight_decay")?,
            }),
            "Adafactor" => {
                let [eps1, eps2] = self.get::<[Option<f64>; 2]>("eps")?;
                Arc::new(Adafactor {
                    beta2_decay: self.get("beta2_decay")?,
                    eps1,
                    eps2: eps2.ok_or_else(|| PyValueError::new_err("epsilon2 should be a number but is: None"))?,
                    d: self.get("d")?,
                    weight_decay: self.get("weight_decay")?,
                })
            }
            "Muon" => Arc::new(Muon {
                weight_decay: self.get("weight_decay")?,
                momentum: self.get("momentum")?,
                nesterov: self.get("nesterov")?,
                coefficients: self.get("ns_coefficients")?,
                eps: self.get("eps")?,
                iterations: self.get("ns_steps")?,
                lr_adjustment: match self.get::<Option<String>>("adjust_lr_fn")?.as_deref() {
                    None | Some("original") => LrAdjustment::Original,
                    Some("match_rms_adamw") => LrAdjustment::MatchRmsAdamW,
                    Some(name) => {
                        let text = format!("Adjust learning rate function {name} is not supported");
                        return Err(PyValueError::new_err(text));
                    }
                },
            }),
            name => return Err(PyValueError::new_err(format!("{name} is not an optimizer's rule"))),
        })
    }
}

/// A group as Python has it at a step.
struct GroupSettings {
    lr: f64,
    maximize: bool,
    rule: Arc<dyn Rule>,
    parameters: Vec<Tensor>,
}

/// An optimizer of Rust with its parameters. `tenure.optim` gives it the groups at every step.
#[pyclass(frozen, name = "Optimizer", module = "tenure._native")]
pub(crate) struct OptimizerObject {
    rule: String,
    optimizer: Mutex<Optimizer>,
}

#[pymethods]
impl OptimizerObject {
    #[new]
    fn new(rule: String) -> Self {
        Self { rule, optimizer: Mutex::new(Optimizer::empty()) }
    }

    /// Adds a group of parameters with these names.
    fn add_group(&self, group: &Bound<'_, PyDict>, names: Vec<String>) -> PyResult<()> {
        let GroupSettings { lr, maximize, rule, parameters } = self.settings(group)?;
        let parameters = names.into_iter().zip(parameters).map(|(name, tensor)| Parameter::of_leaf(name, tensor));
        let mut optimizer = self.optimizer.lock();
        optimizer.add_group(parameters.collect(), lr, rule);
        if let Some(group) = optimizer.groups_mut().last_mut() {
            group.set_maximize(maximize);
        }
        Ok(())
    }

    /// Steps all parameters that have a gradient by the groups' current settings.
    fn step(&self, py: Python<'_>, groups: &Bound<'_, PyList>) -> PyResult<()> {
        self.update(groups)?;
        py.detach(|| self.optimizer.lock().step()).map_err(exception)
    }

    /// Allocates the state that the first step would allocate.
    fn prepare(&self, py: Python<'_>, groups: &Bound<'_, PyList>) -> PyResult<()> {
        self.update(groups)?;
        py.detach(|| self.optimizer.lock().prepare()).map_err(exception)
    }

    /// Returns the names of the state tensors of a parameter.
    fn slot_names(&self, groups: &Bound<'_, PyList>, group: usize, index: usize) -> PyResult<Vec<&str>> {
        self.update(groups)?;
        let optimizer = self.optimizer.lock();
        optimizer.groups().get(group).ok_or_else(|| no_group(group))?.slot_names(index).map_err(exception)
    }

    /// Returns the number of steps and the named state tensors of a parameter.
    fn state(&self, py: Python<'_>, group: usize, index: usize) -> PyResult<(u64, Vec<(&str, TensorObject)>)> {
        let state = py.detach(|| match self.optimizer.lock().groups().get(group) {
            Some(group) => group.state_of(index).map(Some),
            None => Ok(None),
        });
        let (steps, slots) = state.map_err(exception)?.ok_or_else(|| no_group(group))?;
        Ok((steps, slots.into_iter().map(|(name, slot)| (name, slot.into())).collect()))
    }

    /// Sets the number of steps and the state tensors of a parameter.
    fn set_state(
        &self,
        py: Python<'_>,
        groups: &Bound<'_, PyList>,
        group: usize,
        index: usize,
        steps: u64,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.update(groups)?;
        let values = tensors(values)?;
        py.detach(|| match self.optimizer.lock().groups_mut().get_mut(group) {
            Some(group) => group.set_state_of(index, steps, &values).map(Some),
            None => Ok(None),
        })
        .map_err(exception)?
        .ok_or_else(|| no_group(group))
    }
}

impl OptimizerObject {
    fn settings(&self, group: &Bound<'_, PyDict>) -> PyResult<GroupSettings> {
        let settings = Hyperparameters(group);
        Ok(GroupSettings {
            lr: settings.get("lr")?,
            maximize: settings.maximize()?,
            rule: settings.rule(&self.rule)?,
            parameters: tensors(&settings.get::<Bound<'_, PyAny>>("params")?)?,
        })
    }

    /// Takes over the groups' settings, and the tensors of parameters whose `data` was replaced.
    fn update(&self, groups: &Bound<'_, PyList>) -> PyResult<()> {
        let mut settings = Vec::with_capacity(groups.len());
        for group in groups {
            settings.push(self.settings(group.cast::<PyDict>()?)?);
        }
        let mut optimizer = self.optimizer.lock();
        let groups = optimizer.groups_mut();
        let lengths = groups.iter().map(|group| group.parameters().len());
        if !lengths.eq(settings.iter().map(|group| group.parameters.len())) {
            let text = "parameters or groups were added or removed in param_groups: use add_param_group, or make \
                        another optimizer";
            return Err(PyRuntimeError::new_err(text));
        }
        for (group, GroupSettings { lr, maximize, rule, parameters }) in groups.iter_mut().zip(settings) {
            group.set_lr(lr);
            group.set_maximize(maximize);
            group.set_rule(rule);
            let replaced: Vec<(usize, Parameter)> = group
                .parameters()
                .zip(parameters)
                .enumerate()
                .filter(|(_, (old, new))| !old.is_same(new))
                .map(|(index, (old, new))| (index, Parameter::of_leaf(old.name(), new)))
                .collect();
            for (index, parameter) in replaced {
                group.set_parameter(index, parameter).map_err(exception)?;
            }
        }
        Ok(())
    }
}

/// Divides the gradients of tensors by `scale`. Returns whether all are finite. If not, none was changed.
#[pyfunction]
pub(crate) fn unscale_gradients(py: Python<'_>, parameters: &Bound<'_, PyAny>, scale: f64) -> PyResult<bool> {
    let parameters: Vec<Parameter> =
        tensors(parameters)?.into_iter().map(|tensor| Parameter::of_leaf("", tensor)).collect();
    py.detach(|| unscale_grads(parameters.iter(), scale)).map_err(exception)
}

fn no_group(group: usize) -> PyErr {
    PyRuntimeError::new_err(format!("the optimizer has no group {group}"))
}

pub(super) fn exception(error: tenure::nn::Error) -> PyErr {
    match error {
        tenure::nn::Error::Tensor(error) => super::exception(error),
        error => crate::errors::exception(error),
    }
}
