//! Planning: problems, planners, mappings, and requests to an agent.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::json;
use tenure::agent::serve::{self, Address, AgentOptions, AgentRequest, plan_of};
use tenure::agent::{Measured, Policy};
use tenure::plan::planner::{Planner, Scheduled};
use tenure::plan::{bound, simulate};

use crate::errors::complaint;
use crate::interrupt::Interrupt;

type AnyPlanner = Box<dyn Planner + Send + Sync>;

/// A validated problem.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Problem(pub(crate) tenure::plan::Problem);

#[pymethods]
impl Problem {
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| tenure::plan::Problem::read(path)).map(Self).map_err(said)
    }

    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        py.detach(|| tenure::plan::Problem::from_json(text)).map(Self).map_err(said)
    }

    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.to_json()).map_err(said)
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.write(path)).map_err(said)
    }

    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.0.peak_bytes()
    }
}

/// A validated mapping.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Mapping(tenure::plan::Mapping);

#[pymethods]
impl Mapping {
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| tenure::plan::Mapping::read(path)).map(Self).map_err(said)
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.write(path)).map_err(said)
    }

    #[getter]
    fn program(&self) -> &str {
        self.0.program()
    }

    #[getter]
    fn tiers(&self) -> Vec<String> {
        self.0.tiers().to_vec()
    }

    #[getter]
    fn places(&self) -> Vec<(String, usize)> {
        self.0.places().map(|(key, tier)| (key.to_owned(), tier)).collect()
    }
}

/// Returns all planners of this build, each with a line that describes it.
#[pyfunction]
pub(crate) fn planners() -> PyResult<Vec<(String, &'static str)>> {
    Ok(all()?.into_iter().map(|(planner, about)| (planner.name().to_owned(), about)).collect())
}

fn all() -> PyResult<Vec<(AnyPlanner, &'static str)>> {
    Policy::trained().map(tenure::agent::planners).map_err(said)
}

/// Makes a plan. Returns the mapping, and facts about it as JSON.
#[pyfunction]
pub(crate) fn plan(
    py: Python<'_>,
    problem: &Problem,
    options: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Mapping, String)> {
    let request = request(problem, options)?;
    let name = request.options().planner.as_deref().unwrap_or(Scheduled.name());
    let mut planners = all()?;
    let names: Vec<String> = planners.iter().map(|(planner, _)| format!("{:?}", planner.name())).collect();
    let found = planners.iter().position(|(planner, _)| name == planner.name());
    let found = found.ok_or_else(|| {
        PyValueError::new_err(format!("planner={name:?}: there is none; expected one of {}", names.join(", ")))
    })?;
    let (planner, _) = planners.swap_remove(found);
    let mut interrupt = Interrupt::new();
    let mut raised = None;
    let planned = py.detach(|| {
        planner.plan(
            request.problem(),
            &request.planner_options(),
            &mut |found: &tenure::plan::planner::PlannerProgress| {
                interrupt.ask()?;
                let Some(progress) = &progress else { return ControlFlow::Continue(()) };
                raised = Python::attach(|py| progress.call1(py, (found.evaluations, found.best))).err();
                if raised.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        )
    });
    let planned = interrupt.result(raised.map_or_else(|| planned.map_err(said), Err))?;
    let outcome = simulate(request.problem(), &planned.plan).map_err(said)?;
    let mapping = tenure::plan::Mapping::of_plan(request.problem(), &planned.plan).map_err(said)?;
    let facts = json!({
        "planner": planner.name(),
        "score": outcome.score(),
        "bound": planned.bound,
        "makespan_us": outcome.makespan_ns / 1e3,
        "least_us": bound::makespan_bound_ns(request.problem()) / 1e3,
        "evaluations": planned.evaluations,
        "seconds": planned.elapsed.as_secs_f64(),
    });
    Ok((Mapping(mapping), facts.to_string()))
}

/// Simulates a mapping. Returns the outcome as JSON.
#[pyfunction]
pub(crate) fn simulate_mapping(py: Python<'_>, problem: &Problem, mapping: &Mapping) -> PyResult<String> {
    let outcome = py.detach(|| {
        let plan = plan_of(&problem.0, &mapping.0).map_err(said)?;
        simulate(&problem.0, &plan).map_err(said)
    })?;
    let [peak_bytes, accessed_bytes] = [&outcome.peak_bytes, &outcome.accessed_bytes].map(|bytes| {
        let tiers = problem.0.tiers().iter().map(|tier| &tier.name);
        tiers.zip(bytes).collect::<Vec<_>>()
    });
    let facts = json!({
        "score": outcome.score(),
        "makespan_us": outcome.makespan_ns / 1e3,
        "least_us": bound::makespan_bound_ns(&problem.0) / 1e3,
        "peak_bytes": peak_bytes,
        "accessed_bytes": accessed_bytes,
    });
    Ok(facts.to_string())
}

/// A connection to an agent.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct AgentClient(Mutex<serve::AgentClient>);

#[pymethods]
impl AgentClient {
    #[new]
    fn new(py: Python<'_>, address: &str) -> PyResult<Self> {
        let address = match address.parse::<SocketAddr>() {
            Ok(address) => Address::Tcp(address),
            Err(_) => Address::Unix(address.into()),
        };
        py.detach(|| serve::AgentClient::connect(&address)).map(|client| Self(Mutex::new(client))).map_err(said)
    }

    /// Asks the agent for a plan. Returns the mapping, its file, and facts about it as JSON.
    fn plan(&self, py: Python<'_>, problem: &Problem, options: &str) -> PyResult<(Mapping, PathBuf, String)> {
        let request = request(problem, options)?;
        let answer = py.detach(|| self.client(|client| client.ask(&request)))?;
        let facts = json!({
            "planner": answer.placed.planner,
            "score": answer.score,
            "bound": null,
            "makespan_us": answer.makespan_us,
            "least_us": bound::makespan_bound_ns(request.problem()) / 1e3,
            "evaluations": answer.placed.evaluations,
            "seconds": answer.placed.seconds,
        });
        Ok((Mapping(answer.mapping), answer.placed.mapping, facts.to_string()))
    }

    /// Reports measured times. Returns how the agent uses them, as JSON.
    fn report(&self, py: Python<'_>, mapping: PathBuf, step_ns: u64, kernels_ns: Vec<u64>) -> PyResult<String> {
        let measured = Measured { mapping, step_ns, kernels_ns };
        let learned = py.detach(|| self.client(|client| client.report(&measured)))?;
        crate::json(&learned)
    }
}

impl AgentClient {
    /// Calls the agent. Threads take turns.
    fn client<T, E: ToString>(&self, call: impl FnOnce(&mut serve::AgentClient) -> Result<T, E>) -> PyResult<T> {
        let mut client = self.0.lock().map_err(said)?;
        call(&mut client).map_err(said)
    }
}

fn request(problem: &Problem, options: &str) -> PyResult<AgentRequest> {
    let options: AgentOptions =
        serde_json::from_str(options).map_err(|error| PyValueError::new_err(error.to_string()))?;
    if problem.0.tiers().is_empty() && options.fast_bytes.is_none() {
        return Err(complaint("the problem names no tiers: give fast_bytes, or a problem with tiers".into()));
    }
    AgentRequest::new(problem.0.clone(), options).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn said(error: impl ToString) -> PyErr {
    complaint(error.to_string())
}
