//! Steps of PyTorch's within a budget of memory: what `tenure.torch.budget` tells the offload engine.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tenure::offload::{self, Engine, Id, Memory, OffloadError, Pass, Recompute, Setup};
use tenure::plan::Planner;
use tenure::plan::planner::{Evolutionary, FlashNeuron, Scheduled};
use tenure::prelude::*;
use tenure::tier::codec::{Choice, UnknownCodec};
use tenure_capi::shared::{self, OnHostMemory};
use tenure_device::Stream;

use crate::errors::complaint;
use crate::recipe::{Bytes, Ingredient, Recipe, given};

/// Steps that are measured at first: one compiles kernels and makes the optimizer's state.
const PASSES: u64 = 2;

/// What was saved: kept, or somewhere else.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Saved(Arc<offload::Saved>);

/// A budget of one device's memory, or of the host's.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Budget {
    engine: Engine,
    device: Device,
    /// Makes a storage of PyTorch's of so many bytes.
    make: Arc<Py<PyAny>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of the plain peak, which is not known yet.
    percent: Option<f64>,
    plain_bytes: u64,
    step: Option<(offload::Step, Pass)>,
    /// Steps, by signature.
    kinds: HashMap<u64, Kind>,
    passes: u64,
    /// How things were made in the step.
    book: HashMap<Id, Arc<Recipe>>,
    on_host: Option<OnHostMemory>,
}

/// Steps of one signature.
#[derive(Default)]
struct Kind {
    /// How often they were measured: what came of each time is known by another name.
    passes: u64,
    /// What was allocated when the step began that was measured.
    held_bytes: u64,
}

/// What became of a step, as a dictionary.
#[derive(IntoPyObject)]
pub(crate) struct StepReport {
    budget_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    spilled_bytes: u64,
    fetched_bytes: u64,
    recomputed_bytes: u64,
    recomputed_us: u64,
    stalled_us: u64,
    unplanned: u64,
    is_planned: bool,
    predicted_us: Option<u64>,
    codec: String,
}

#[pymethods]
impl Budget {
    /// Of CUDA device number `device`, or of the host's memory. `make` makes a storage there of so many bytes, by PyTorch's
    /// allocator.
    #[new]
    fn new(
        py: Python<'_>,
        device: Option<u16>,
        spill: Vec<PathBuf>,
        spill_bytes: Option<u64>,
        host_bytes: Option<u64>,
        planner: &str,
        make: Py<PyAny>,
    ) -> PyResult<Self> {
        let device = device.map_or(Device::CPU, |index| Device::cuda(index as _));
        let planner = planner_of(planner)?;
        let Some(memory) = Memory::of(device) else {
            return Err(complaint(format!("Tenure does not manage the memory of {device}")));
        };
        let (folders, disk_bytes, pinned_bytes) = (spill, spill_bytes, host_bytes);
        let setup = Setup { folders, disk_bytes, pinned_bytes, planner, ..Setup::default() };
        let open = || setup.engine(memory).map_err(|error| error.to_string());
        let engine = py.detach(open).map_err(complaint)?;
        let on_host = device.is_cpu().then(OnHostMemory::enter).flatten();
        let state = Mutex::new(State { on_host, ..State::default() });
        Ok(Self { engine, device, make: Arc::new(make), state })
    }

    /// Sets the budget.
    fn set_bytes(&self, bytes: u64) {
        self.engine.set_budget(bytes);
    }

    /// Sets by what bytes are encoded on their way to a disk.
    fn set_codec(&self, codec: &str) -> PyResult<()> {
        let codec: Choice = codec.parse().map_err(|error: UnknownCodec| complaint(error.to_string()))?;
        self.engine.set_codec(codec);
        Ok(())
    }

    /// Sets the budget, when it is known what a step takes without.
    fn set_percent(&self, percent: f64) {
        self.state().percent = Some(percent);
    }

    /// The budget, if it is known.
    #[getter]
    fn bytes(&self) -> Option<u64> {
        self.engine.budget_bytes()
    }

    /// The most that a step took without a budget, if one was measured.
    #[getter]
    fn plain_bytes(&self) -> Option<u64> {
        Some(self.state().plain_bytes).filter(|bytes| *bytes > 0)
    }

    /// Whether there is a step.
    #[getter]
    fn is_in_step(&self) -> bool {
        self.state().step.is_some()
    }

    /// A step begins.
    fn begin(&self, py: Python<'_>, signature: u64) -> PyResult<()> {
        py.detach(|| self.begin_step(signature)).map_err(told)
    }

    /// The step ends, if there is one.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<StepReport>> {
        let Some((step, pass)) = self.end() else { return Ok(None) };
        let report = py.detach(|| step.finish()).map_err(told)?;
        if pass == Pass::Plain {
            let mut state = self.state();
            state.plain_bytes = state.plain_bytes.max(report.peak_bytes.unwrap_or(0));
        }
        Ok(Some(self.report(&report, pass)))
    }

    /// The step ends, and nothing is learned of it. What went wrong that nobody was told of.
    fn abandon(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| {
            drop(self.end());
            self.engine.take_failure().map(|error| error.to_string())
        })
    }

    /// Writes what the planner of the last step was asked. Whether there was one.
    fn write_problem(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        let Some(problem) = py.detach(|| self.engine.problem()).map_err(told)? else {
            return Ok(false);
        };
        problem.write(path).map_err(|error| complaint(error.to_string()))?;
        Ok(true)
    }

    /// Nothing is limited any more. What was saved can still come back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            drop(self.end());
            drop(self.state().on_host.take());
            self.engine.lift()
        })
        .map_err(told)
    }

    /// An operation has been asked for on a stream. Whether it is to be told what it has made: never where it is captured,
    /// which is no part of the step.
    fn is_repeated(&self, py: Python<'_>, stream: usize) -> bool {
        py.detach(|| {
            let stream = self.stream(stream);
            if stream.as_ref().is_some_and(is_captured) {
                return false;
            }
            let is_repeated = self.engine.is_repeated();
            if !is_repeated {
                self.engine.point(stream.as_ref());
            }
            is_repeated
        })
    }

    /// Such an operation has made bytes, each at an address, so many, at a version, of others on a stream. What makes each of them
    /// again, if anything does, is called with storages of the inputs and the stream, and returns the result, its address
    /// and its bytes.
    fn operation(&self, py: Python<'_>, made: Vec<Bytes>, stream: usize, inputs: Vec<Bytes>, again: Vec<Py<PyAny>>) {
        py.detach(|| {
            let ids: Vec<Option<Id>> = made.iter().map(|made| self.id(*made)).collect();
            let on = self.stream(stream);
            match ids.iter().flatten().next() {
                Some(id) => self.engine.operation(*id, on.as_ref()),
                None => self.engine.point(on.as_ref()),
            }
            let made_in = self.engine.interval().and_then(|now| now.checked_sub(1));
            let Some(inputs) = inputs.into_iter().map(|input| self.id(input)).collect::<Option<Vec<Id>>>() else {
                return;
            };
            let mut state = self.state();
            let inputs: Vec<Ingredient> = inputs.into_iter().map(|id| (id, state.book.get(&id).cloned())).collect();
            for ((id, (_, bytes, _)), compute) in ids.into_iter().zip(made).zip(again) {
                let Some(id) = id else { continue };
                let (inputs, make, device) = (inputs.clone(), Arc::clone(&self.make), self.device);
                let recipe = Recipe { id, inputs, made_in, bytes, device, stream, make, compute };
                state.book.insert(id, Arc::new(recipe));
            }
        });
    }

    /// PyTorch's storage at an address, of so many bytes, is saved at a version, with elements of a dtype. None if it stays.
    fn save(
        &self,
        py: Python<'_>,
        storage: (usize, usize, u64, &str),
        stream: usize,
        name: String,
    ) -> PyResult<Option<Saved>> {
        let (address, bytes, version, dtype) = storage;
        // Of those that Tenure does not have, nothing is known.
        let dtype = dtype.parse().unwrap_or(DType::U8);
        py.detach(|| {
            // SAFETY: who calls has the storage.
            let Some(storage) = (unsafe { shared::share(self.device, address, bytes) }) else { return Ok(None) };
            let recipe = self.state().book.get(&(storage.generation(), version)).cloned();
            let recipe = recipe.map(|recipe| recipe as Arc<dyn Recompute>);
            let saved = self.engine.save(&storage, version, dtype, self.stream(stream).as_ref(), recipe, || name)?;
            Ok(saved.map(Saved))
        })
        .map_err(told)
    }

    /// What was saved, as a storage of PyTorch's.
    fn need<'py>(&self, py: Python<'py>, saved: &Saved, stream: usize) -> PyResult<Bound<'py, PyAny>> {
        let need = || self.engine.need(&saved.0, self.stream(stream).as_ref());
        given(py.detach(need).map_err(told)?, self.make.bind(py))
    }
}

impl Budget {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No step goes on. The one that did.
    fn end(&self) -> Option<(offload::Step, Pass)> {
        let mut state = self.state();
        // What is kept to make things again goes now.
        state.book.clear();
        state.step.take()
    }

    /// A step begins: one that is measured, if none of its kind was, or more is held now than there was then, such as an
    /// optimizer's state.
    fn begin_step(&self, signature: u64) -> Result<(), OffloadError> {
        let held_bytes = self.engine.memory().statistics().all.allocated_bytes.current;
        let mut state = self.state();
        let State { percent, plain_bytes, step, kinds, passes, .. } = &mut *state;
        let kind = kinds.entry(signature).or_default();
        // Where ever more is held, it is measured ever more seldom.
        let tolerance = (self.engine.least_bytes() + (kind.held_bytes >> 8)) << kind.passes.saturating_sub(1).min(16);
        let is_measured = *passes < PASSES || kind.passes == 0 || held_bytes > kind.held_bytes + tolerance;
        if is_measured {
            kind.passes += 1;
            *passes += 1;
            kind.held_bytes = kind.held_bytes.max(held_bytes);
        } else if let Some(percent) = percent.take() {
            self.set_bytes((*plain_bytes as f64 * percent / 100.0) as u64);
        }
        let mut hasher = DefaultHasher::new();
        (signature, kind.passes).hash(&mut hasher);
        let pass = if percent.is_some() { Pass::Plain } else { Pass::Budgeted };
        *step = None;
        *step = Some((self.engine.begin(hasher.finish(), pass)?, pass));
        Ok(())
    }

    /// Which bytes those are, if they are Tenure's.
    fn id(&self, (address, bytes, version): Bytes) -> Option<Id> {
        // SAFETY: who calls has the storage.
        unsafe { shared::share(self.device, address, bytes) }.map(|storage| (storage.generation(), version))
    }

    fn stream(&self, handle: usize) -> Option<Stream> {
        // SAFETY: one of PyTorch's, which it never ends, or the null stream.
        if self.device.is_cpu() { None } else { unsafe { shared::stream(self.device, handle) } }
    }

    fn report(&self, report: &offload::StepReport, pass: Pass) -> StepReport {
        let is_budgeted = pass == Pass::Budgeted;
        let aside_bytes = if is_budgeted { self.engine.aside_bytes() } else { 0 };
        StepReport {
            budget_bytes: self.bytes().filter(|_| is_budgeted),
            peak_bytes: report.peak_bytes.map(|bytes| bytes + aside_bytes),
            spilled_bytes: report.spilled_bytes,
            fetched_bytes: report.fetched_bytes,
            recomputed_bytes: report.recomputed_bytes,
            recomputed_us: report.recomputed.as_micros() as u64,
            stalled_us: report.stalled.as_micros() as u64,
            unplanned: report.unplanned,
            is_planned: report.is_planned,
            predicted_us: report.predicted.map(|predicted| predicted.as_micros() as u64),
            codec: report.codec.to_string(),
        }
    }
}

fn is_captured(stream: &Stream) -> bool {
    stream.driver().is_capturing(stream.id()).unwrap_or(false)
}

fn told(error: OffloadError) -> PyErr {
    complaint(error.to_string())
}

fn planner_of(name: &str) -> PyResult<Box<dyn Planner + Send + Sync>> {
    Ok(match name {
        "scheduled" => Box::new(Scheduled),
        "flashneuron" => Box::new(FlashNeuron),
        "evolutionary" => Box::new(Evolutionary::default()),
        _ => {
            let names = "'scheduled', 'flashneuron' or 'evolutionary'";
            return Err(complaint(format!("planner={name:?}: expected {names}")));
        }
    })
}
