//! A network that records its inputs, and waits until it may answer.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tenure_nn::checkpoint;
use tenure_nn::networks::{Architectures, Network};
use tenure_nn::{Init, Parameter, module};
use tenure_serve::protocol::Tensor as Message;
use tenure_tensor::{DType, Device, Result, Tensor, TensorError};

use super::{floats, request};

/// The number of floats in each model.
const NUMBERS: usize = 25_000;

/// The inputs that it refuses, and that make it panic.
pub(crate) const BAD: f32 = -1.0;
pub(crate) const PANIC: f32 = -2.0;

/// The state that all probes of a server share.
#[derive(Default)]
pub(crate) struct Control {
    /// The first numbers of each call's rows.
    calls: Mutex<Vec<Vec<f32>>>,
    /// The number of calls that may go on; `None` for all.
    allowed: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Control {
    /// Makes calls wait from now on.
    pub(crate) fn hold(&self) {
        self.allow(Some(0));
    }

    /// Lets one call go on.
    pub(crate) fn release_one(&self) {
        self.allow(Some(1));
    }

    /// Lets all calls go on.
    pub(crate) fn release(&self) {
        self.allow(None);
    }

    fn allow(&self, calls: Option<usize>) {
        *self.allowed.lock().unwrap() = calls;
        self.changed.notify_all();
    }

    /// Waits until a call may go on.
    fn pass(&self) {
        let allowed = self.allowed.lock().unwrap();
        // A failed test would hold it forever.
        let limit = Duration::from_secs(300);
        let (mut allowed, waited) =
            self.changed.wait_timeout_while(allowed, limit, |allowed| *allowed == Some(0)).unwrap();
        assert!(!waited.timed_out(), "held for too long");
        *allowed = allowed.map(|calls| calls - 1);
    }

    pub(crate) fn calls(&self) -> Vec<Vec<f32>> {
        self.calls.lock().unwrap().clone()
    }
}

struct Probe {
    weight: Parameter,
    control: Arc<Control>,
}
module!(Probe { weight });

impl Network for Probe {
    fn inputs(&self) -> usize {
        1
    }

    fn outputs(&self) -> usize {
        1
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let rows = inputs[0].to_vec::<f32>()?;
        self.control.calls.lock().unwrap().push(rows.clone());
        self.control.pass();
        assert!(!rows.contains(&PANIC), "as it should");
        if rows.contains(&BAD) {
            return Err(TensorError::argument("probe", "a number that it does not like"));
        }
        Ok(vec![inputs[0].mul(&self.weight.narrow(0, NUMBERS - 1, 1)?)?])
    }
}

/// Returns a registry with only the probe architecture.
pub(crate) fn architectures(control: &Arc<Control>) -> Architectures {
    let mut architectures = Architectures::none();
    let control = Arc::clone(control);
    architectures.register("probe", move |scope, _| {
        let weight = scope.parameter("weight", &[NUMBERS], Init::ONES)?;
        let control = Arc::clone(&control);
        Ok(Box::new(Probe { weight, control }))
    });
    architectures
}

/// Writes the folder of a probe that answers three times its input.
pub(crate) fn write(root: &Path, name: &str, more: &str) {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    let weight = Tensor::full(&[NUMBERS], 3.0, DType::F32, Device::CPU).unwrap();
    checkpoint::save(&folder.join("model.safetensors"), [("weight".to_owned(), &weight)], ("of", "a test")).unwrap();
    let tensor = |name: &str| format!("[{{ name = \"{name}\", datatype = \"FP32\", shape = [-1, 1] }}]");
    let config = format!("architecture = \"probe\"\ninputs = {}\noutputs = {}\n{more}", tensor("x"), tensor("y"));
    fs::write(folder.join("config.toml"), config).unwrap();
}

/// Creates a request of one row.
pub(crate) fn ask(model: &str, number: f32) -> tenure_serve::protocol::InferRequest {
    request(model, vec![floats("x", &[1, 1], &[number])])
}

/// Returns the numbers of an answer.
pub(crate) fn numbers(output: &Message) -> Vec<f32> {
    output.bytes().chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}
