//! A network that damages its process on request, and workers that compute it.
#![expect(clippy::disallowed_methods, reason = "a model that computes until it is told to end")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use std::{env, process};

use tempfile::TempDir;
use tenure_nn::checkpoint;
use tenure_nn::networks::{Architectures, Network};
use tenure_nn::{Init, Parameter, module};
use tenure_serve::serving::ServingOptions;
use tenure_serve::worker::{self, WorkerCommand};
use tenure_tensor::{DType, Device, Result, Tensor};

use super::probe::numbers;
use super::{RESCAN, Served};

/// The number of floats in each model.
const NUMBERS: usize = 25_000;

pub(crate) const PANIC: f32 = -1.0;
pub(crate) const ABORT: f32 = -2.0;
/// Loops forever and uses its weights.
pub(crate) const LOOP: f32 = -3.0;
/// Loops forever without using its weights.
pub(crate) const HANG: f32 = -4.0;

/// Asks for more memory than any machine has.
pub(crate) const GREED: f32 = -5.0;

/// Computes until the niceness of its thread is raised.
pub(crate) const SPIN: f32 = -6.0;

/// A network that answers three times its input, and its process id. It waits while there is a file `hold`.
struct Moody {
    weight: Parameter,
    folder: PathBuf,
}
module!(Moody { weight });

impl Network for Moody {
    fn inputs(&self) -> usize {
        1
    }

    fn outputs(&self) -> usize {
        2
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let asked = inputs[0].to_vec::<f32>()?[0];
        File::create(self.folder.join("begun")).unwrap();
        while self.folder.join("hold").exists() {
            sleep(Duration::from_millis(2));
        }
        assert_ne!(asked, PANIC, "as it should");
        if asked == ABORT {
            process::abort();
        }
        if asked == GREED {
            Tensor::full(&[1 << 40], 1.0, DType::F32, Device::CPU)?;
        }
        if asked == SPIN {
            let normal = niceness();
            while niceness() == normal {}
        }
        let answer = inputs[0].mul(&self.weight.narrow(0, NUMBERS - 1, 1)?)?;
        if asked == LOOP || asked == HANG {
            File::create(self.folder.join("endless")).unwrap();
            loop {
                sleep(Duration::from_millis(2));
                if asked == LOOP {
                    inputs[0].mul(&self.weight)?;
                }
            }
        }
        Ok(vec![answer, Tensor::full(&[1, 1], f64::from(process::id()), DType::F32, Device::CPU)?])
    }
}

/// Returns the niceness of this thread.
fn niceness() -> i32 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse().unwrap()
}

pub(crate) fn architectures() -> Architectures {
    let mut architectures = Architectures::default();
    architectures.register("moody", |scope, options| {
        let folder = options["folder"].as_str().ok_or("a folder")?.into();
        Ok(Box::new(Moody { weight: scope.parameter("weight", &[NUMBERS], Init::ONES)?, folder }))
    });
    architectures
}

/// Returns the command that runs this test program as a worker: its test `is_a_worker`, which calls [`be_a_worker`].
/// The test runner's output is discarded.
pub(crate) fn command() -> WorkerCommand {
    let script = "exec \"$0\" --exact is_a_worker --ignored --nocapture >/dev/null 2>&1";
    let arguments = ["-c".into(), script.into(), env::current_exe().unwrap().into_os_string()];
    WorkerCommand { program: "/bin/sh".into(), arguments: arguments.into() }
}

pub(crate) fn be_a_worker() -> ! {
    worker::run(architectures());
    process::exit(0)
}

/// Starts a server whose workers compute the models in a folder.
pub(crate) fn serve(folder: TempDir, memory_bytes: u64) -> Served {
    let mut options = ServingOptions::new(folder.path(), memory_bytes);
    (options.worker, options.rescan) = (Some(command()), RESCAN);
    Served::start(folder, options, architectures())
}

pub(crate) fn write(root: &Path, name: &str) {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    let weight = Tensor::full(&[NUMBERS], 3.0, DType::F32, Device::CPU).unwrap();
    checkpoint::save(&folder.join("model.safetensors"), [("weight".to_owned(), &weight)], ("of", "a test")).unwrap();
    let tensor = |name: &str| format!("{{ name = \"{name}\", datatype = \"FP32\", shape = [-1, 1] }}");
    let config = format!(
        "architecture = \"moody\"\ninputs = [{}]\noutputs = [{}, {}]\noptions = {{ folder = {folder:?} }}",
        tensor("x"),
        tensor("y"),
        tensor("process")
    );
    fs::write(folder.join("config.toml"), config).unwrap();
}

/// Writes models with these names to a new folder.
pub(crate) fn models(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    names.iter().for_each(|name| write(folder.path(), name));
    folder
}

impl Served {
    /// Asks a moody model, and returns its answer and the process that computed it.
    pub(crate) fn mood(&self, model: &str, number: f32) -> std::result::Result<(f32, u32), (u16, String)> {
        let answer = self.infer(&super::probe::ask(model, number))?;
        Ok((numbers(&answer.outputs[0])[0], numbers(&answer.outputs[1])[0] as u32))
    }

    /// Makes calls of a model wait from now on.
    pub(crate) fn hold(&self, model: &str) {
        let folder = self.folder.path().join(model);
        let _ = fs::remove_file(folder.join("begun"));
        File::create(folder.join("hold")).unwrap();
    }

    pub(crate) fn release(&self, model: &str) {
        fs::remove_file(self.folder.path().join(model).join("hold")).unwrap();
    }

    /// Returns whether a call of a model loops forever.
    pub(crate) fn is_endless(&self, model: &str) -> bool {
        self.folder.path().join(model).join("endless").exists()
    }

    /// Returns whether a call of a model has begun since it was held.
    pub(crate) fn has_begun(&self, model: &str) -> bool {
        self.folder.path().join(model).join("begun").exists()
    }
}
