//! A fake service that computes nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_serve::metrics::{Metrics, Phases, WeightsFound};
use tenure_serve::protocol::{
    Batching, Datatype, IndexEntry, InferRequest, InferResponse, ModelMetadata, ModelState, Tensor, TensorMetadata,
};
use tenure_serve::service::{ModelSnapshot, Resident, ServeError, Service, ServiceFuture, Snapshot, Texts, Tier};
use tenure_tensor::Device;
use tokio::sync::Semaphore;

/// A service with models `echo_fp32` and so on, which answer their input `x`, a matrix, as `y`. Other models do not
/// answer: `slow` waits for a permit, `full` and `panics` fail, and `broken` answers with another output. Two
/// models answer vectors of three numbers: `vectors` takes tokens, and `texts` takes texts.
pub(crate) struct Fake {
    metrics: Metrics,
    unloaded: Mutex<BTreeMap<String, ModelState>>,
    /// The number of waiting requests for `slow`.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// The permits for `slow`: each lets one request go on.
    pub(crate) permits: Semaphore,
    devices: Vec<Device>,
    /// Whether requests may come.
    pub(crate) is_ready: AtomicBool,
}

impl Default for Fake {
    fn default() -> Self {
        Self::on(vec![Device::CPU])
    }
}

impl Fake {
    /// Creates a service that says it computes on these devices.
    pub(crate) fn on(devices: Vec<Device>) -> Self {
        let (metrics, unloaded, waiting) = Default::default();
        Self { metrics, unloaded, waiting, permits: Semaphore::new(0), devices, is_ready: AtomicBool::new(true) }
    }

    fn datatype(model: &str) -> Option<Datatype> {
        match model.strip_prefix("echo_") {
            Some(datatype) => datatype.to_uppercase().parse().ok(),
            None => ["slow", "full", "panics", "broken"].contains(&model).then_some(Datatype::Fp32),
        }
    }

    fn models() -> impl Iterator<Item = String> {
        let echoes = Datatype::ALL.into_iter().map(|datatype| format!("echo_{datatype}").to_lowercase());
        echoes.chain(["slow", "full", "panics", "broken", "vectors", "texts"].map(String::from))
    }

    fn encoder(model: &str) -> Option<Arc<ModelMetadata>> {
        let tensor =
            |name: &str, datatype, shape: &[i64]| TensorMetadata { name: name.into(), datatype, shape: shape.into() };
        let inputs = match model {
            "vectors" => vec![
                tensor("attention_mask", Datatype::Int64, &[-1, -1]),
                tensor("input_ids", Datatype::Int64, &[-1, -1]),
            ],
            "texts" => vec![tensor("text", Datatype::Bytes, &[-1])],
            _ => return None,
        };
        let versions = vec!["1".into()];
        let platform = "fake".into();
        let outputs = vec![tensor("vector", Datatype::Fp32, &[-1, 3])];
        Some(Arc::new(ModelMetadata { name: model.into(), versions, platform, inputs, outputs, batching: None }))
    }

    fn state(&self, model: &str) -> ModelState {
        self.unloaded.lock().unwrap().get(model).copied().unwrap_or(ModelState::Ready)
    }
}

/// Returns for each row the sum of its tokens or bytes, their number, and the number of rows.
fn sums(inputs: &[Tensor]) -> Tensor {
    let rows = inputs[0].shape()[0];
    let integers = |tensor: &Tensor| tensor.bytes().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
    let sums: Vec<[i64; 2]> = match inputs {
        [mask, tokens] => {
            let (mask, tokens): (Vec<i64>, Vec<i64>) = (integers(mask), integers(tokens));
            let length = tokens.len() / rows;
            let sum = |(mask, tokens): (&[i64], &[i64])| {
                [tokens.iter().zip(mask).map(|(token, is_there)| token * is_there).sum(), mask.iter().sum()]
            };
            mask.chunks(length).zip(tokens.chunks(length)).map(sum).collect()
        }
        texts => {
            let sum = |text: &[u8]| [text.iter().map(|byte| i64::from(*byte)).sum(), text.len() as i64];
            texts[0].iter_strings().map(sum).collect()
        }
    };
    let bytes: Vec<u8> = sums
        .iter()
        .flat_map(|[sum, count]| [*sum, *count, rows as i64])
        .flat_map(|n| (n as f32).to_le_bytes())
        .collect();
    Tensor::new("vector", Datatype::Fp32, vec![rows, 3], bytes).unwrap()
}

/// A guard that counts one waiting request.
struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service for Fake {
    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst)
    }

    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn index(&self) -> Vec<IndexEntry> {
        Self::models()
            .map(|name| {
                let state = self.state(&name);
                IndexEntry { name, version: "1".into(), state, reason: String::new() }
            })
            .collect()
    }

    fn metadata(&self, model: &str, version: Option<&str>) -> Result<Arc<ModelMetadata>, ServeError> {
        if let Some(encoder) = Self::encoder(model) {
            return Ok(encoder);
        }
        let known = version.is_none_or(|version| version == "1");
        let datatype = Self::datatype(model)
            .filter(|_| known)
            .ok_or_else(|| ServeError::UnknownModel { model: model.into(), version: version.map(String::from) })?;
        let tensor = |name: &str| vec![TensorMetadata { name: name.into(), datatype, shape: vec![-1, -1] }];
        Ok(Arc::new(ModelMetadata {
            name: model.into(),
            versions: vec!["1".into()],
            platform: "fake".into(),
            inputs: tensor("x"),
            outputs: tensor("y"),
            batching: (model != "slow").then_some(Batching { max_rows: 8, max_delay: Duration::from_millis(2) }),
        }))
    }

    fn is_model_ready(&self, model: &str, version: Option<&str>) -> Result<bool, ServeError> {
        self.metadata(model, version).map(|_| self.state(model) == ModelState::Ready)
    }

    fn infer(&self, request: InferRequest) -> ServiceFuture<'_, InferResponse> {
        Box::pin(async move {
            let model = request.model;
            if self.state(&model) != ModelState::Ready {
                return Err(ServeError::NotReady { model, reason: "it was unloaded".into() });
            }
            let mut output = "y";
            match &*model {
                "slow" => {
                    self.waiting.fetch_add(1, Ordering::SeqCst);
                    let _waiting = Waiting(self.waiting.clone());
                    self.permits.acquire().await.unwrap().forget();
                }
                "full" => return Err(ServeError::QueueFull { model, retry_after: Duration::from_millis(1500) }),
                "panics" => panic!("as it should"),
                "broken" => output = "z",
                _ => {}
            }
            if Self::encoder(&model).is_some() {
                self.metrics.computed(
                    &model,
                    Phases { compute: Duration::from_millis(3), ..Phases::default() },
                    WeightsFound::Resident,
                );
                let outputs = vec![sums(&request.inputs)];
                return Ok(InferResponse { model, version: None, id: None, outputs });
            }
            let [x] = &request.inputs[..] else { panic!("what was checked") };
            let phases = Phases { compute: Duration::from_millis(3), ..Phases::default() };
            self.metrics.computed(&model, phases, WeightsFound::Resident);
            self.metrics.executed(&model, x.shape()[0] as u64, phases);
            let y = Tensor::new(output, x.datatype(), x.shape().into(), x.bytes().clone());
            let y = y.map_err(|error| ServeError::Failed(error.to_string()))?;
            Ok(InferResponse { model, version: Some("1".into()), id: None, outputs: vec![y] })
        })
    }

    /// Returns a tokenizer for which each byte is a token; a tilde is an error.
    fn texts<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, Texts> {
        Box::pin(async move {
            self.metadata(model, None)?;
            let texts = Texts::new(2);
            Ok(if model == "vectors" {
                texts.with_tokenizer(Arc::new(|text| match text.contains('~') {
                    true => Err("a tilde is not a token".into()),
                    false => Ok(text.bytes().map(u32::from).collect()),
                }))
            } else {
                texts
            })
        })
    }

    fn load<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()> {
        Box::pin(async move {
            self.metadata(model, None)?;
            self.unloaded.lock().unwrap().remove(model);
            self.metrics.switched(model, Duration::from_millis(4));
            Ok(())
        })
    }

    fn unload<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()> {
        Box::pin(async move {
            self.metadata(model, None)?;
            self.unloaded.lock().unwrap().insert(model.into(), ModelState::Unavailable);
            Ok(())
        })
    }

    fn snapshot(&self) -> Snapshot {
        let resident = || vec![Resident { tier: "host".into(), bytes: 1_500_000 }];
        let tiers = vec![Tier { name: "host".into(), used_bytes: 27_000_000, capacity_bytes: 64_000_000 }];
        Snapshot {
            uptime: Duration::from_secs(83),
            tiers,
            models: Self::models()
                .map(|name| ModelSnapshot {
                    state: self.state(&name),
                    resident: resident(),
                    queued: 0,
                    answered: self.metrics.answered(&name),
                    switches: self.metrics.switches(&name),
                    latency: self.metrics.latency(&name),
                    last_latencies: self.metrics.last_latencies(&name, ModelSnapshot::LATENCIES),
                    name,
                })
                .collect(),
            switches: self.metrics.latest_switches(),
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}
