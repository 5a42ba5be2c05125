//! A server in this process, with models that are made for the benchmark.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use indicatif::ProgressBar;
use tempfile::TempDir;
use tenure::tensor::{DType, Device, Tensor};
use tenure_nn::networks::Architectures;
use tenure_serve::protocol::{self, Datatype, Encoding};
use tenure_serve::server::{InferenceServer, InferenceServerConfig};
use tenure_serve::service::Service;
use tenure_serve::serving::{Serving, ServingOptions};
use tenure_serve::worker::WorkerCommand;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::plain::{Plain, bytes};
use super::super::workload::Workload;
use super::target::Asked;
use crate::signals;

/// Models in a folder, which is removed when this is dropped.
pub(super) struct OwnModels {
    pub(super) folder: TempDir,
    /// Each model, with its request as bytes and as JSON.
    pub(super) asked: Vec<[Asked; 2]>,
    /// The bytes of all weights.
    pub(super) bytes: u64,
}

impl OwnModels {
    /// Writes `count` models, of `workloads` in turn, each with its own weights. At most `max_rows` rows of one model
    /// may be computed together; `None` computes one request at a time.
    pub(super) fn write(
        workloads: &[Workload],
        count: usize,
        max_rows: Option<usize>,
        device: Device,
        folder: TempDir,
        bar: &ProgressBar,
    ) -> anyhow::Result<Self> {
        let mut models = Self { folder, asked: Vec::new(), bytes: 0 };
        for (number, workload) in workloads.iter().cycle().take(count).enumerate() {
            anyhow::ensure!(!signals::was_received(), "interrupted before the first request");
            let name = format!("{}-{number}", workload.name());
            bar.set_message(format!("weights of {name}"));
            let path = models.folder.path().join(&name);
            fs::create_dir(&path)?;
            let weights = path.join("model.safetensors");
            workload.write_weights(&weights, number as u64)?;
            models.bytes += fs::metadata(&weights)?.len();
            let inputs = workload.inputs(device)?;
            let outputs = Plain::open(*workload, &weights, device)?.forward(&inputs)?;
            fs::write(path.join("config.toml"), config(*workload, &inputs, &outputs, max_rows))?;
            let expected: Vec<_> = bytes(&outputs)?.into_iter().map(Bytes::from).collect();
            let inputs = inputs.iter().enumerate().map(input).collect::<anyhow::Result<Vec<_>>>()?;
            let asked = |encoding| Asked::new(name.clone(), inputs.clone(), encoding, Some(expected.clone()));
            models.asked.push([asked(Encoding::Binary)?, asked(Encoding::Json)?]);
            bar.inc(1);
        }
        Ok(models)
    }
}

/// Returns the configuration file of a model's folder.
fn config(workload: Workload, inputs: &[Tensor], outputs: &[Tensor], max_rows: Option<usize>) -> String {
    let (architecture, options) = workload.built_of();
    // Strings, numbers and lists of them have the same syntax in TOML and JSON.
    let mut text = format!("architecture = \"{architecture}\"\n[options]\n");
    for (name, value) in options {
        writeln!(text, "{name} = {value}").expect("a string takes every character");
    }
    for (role, tensors) in [("inputs", inputs), ("outputs", outputs)] {
        for (number, tensor) in tensors.iter().enumerate() {
            let name = name(role, number);
            let datatype = datatype(tensor.dtype());
            let sizes = &tensor.sizes()[1..];
            let shape: String = sizes.iter().map(|size| format!(", {size}")).collect();
            write!(text, "[[{role}]]\nname = \"{name}\"\ndatatype = \"{datatype}\"\nshape = [-1{shape}]\n")
                .expect("a string takes every character");
        }
    }
    let max_rows = max_rows.unwrap_or_else(|| inputs[0].sizes()[0]);
    text + &format!("[batching]\nmax_rows = {max_rows}\n")
}

fn input((number, tensor): (usize, &Tensor)) -> anyhow::Result<protocol::Tensor> {
    let name = name("inputs", number);
    let datatype = datatype(tensor.dtype());
    Ok(protocol::Tensor::new(name, datatype, tensor.sizes().to_vec(), tensor.to_bytes()?)?)
}

fn name(role: &str, number: usize) -> String {
    format!("{role}-{number}")
}

/// Returns the protocol's name for a dtype of these models' inputs and outputs.
fn datatype(dtype: DType) -> Datatype {
    match dtype {
        DType::I64 => Datatype::Int64,
        DType::BF16 => Datatype::Bf16,
        _ => Datatype::Fp32,
    }
}

/// A server, which runs until it is dropped.
pub(super) struct OwnServer {
    pub(super) url: String,
    serving: Arc<Serving>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    runtime: Runtime,
}

impl OwnServer {
    /// Serves the models of a folder like `tenure serve`, on any free port.
    pub(super) fn start(folder: &Path, device: Device, device_bytes: u64, host_bytes: u64) -> anyhow::Result<Self> {
        let mut options = ServingOptions::new(folder, device_bytes);
        (options.devices, options.host_bytes) = (vec![device], host_bytes);
        options.worker = Some(WorkerCommand::this_program(["worker"]));
        let serving = Arc::new(Serving::start(options, Architectures::default())?);
        let config =
            InferenceServerConfig { address: (Ipv4Addr::LOCALHOST, 0).into(), ..InferenceServerConfig::default() };
        let runtime = Runtime::new()?;
        let server = runtime.block_on(InferenceServer::bind(config, Arc::clone(&serving) as Arc<dyn Service>))?;
        let url = format!("http://{}", server.address());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = runtime.spawn(server.run(async { drop(stopped.await) }));
        Ok(Self { url, serving, stop: Some(stop), served: Some(served), runtime })
    }

    /// Returns the processes that compute for it.
    pub(super) fn workers(&self) -> Vec<u32> {
        self.serving.workers()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(served) = self.served.take() {
            // A panic of the server has already been reported.
            let _ = self.runtime.block_on(served);
        }
    }
}
