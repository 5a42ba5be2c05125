//! Tests of PyTorch modules on a server that cannot compute them. Python tests cover those that are computed.

use std::fs;
use std::path::Path;

use tenure_nn::networks::Architectures;
use tenure_serve::service::Service;
use tenure_serve::serving::{Serving, ServingOptions};
use tenure_serve::worker::WorkerCommand;

const CONFIG: &str = r#"
python = "model.py:load"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 2] }]
"#;

/// Returns the reason why the only model, `m`, is not served.
fn reason(config: &str, python: Option<WorkerCommand>) -> String {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("m"), config);
    let mut options = ServingOptions::new(folder.path(), 1 << 20);
    options.python = python;
    let serving = Serving::start(options, Architectures::default()).unwrap();
    serving.index().remove(0).reason
}

fn write(folder: &Path, config: &str) {
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("config.toml"), config).unwrap();
    fs::write(folder.join("model.py"), "def load(folder): ...").unwrap();
}

#[test]
fn a_server_without_python_says_so() {
    assert_eq!(
        reason(CONFIG, None),
        "PyTorch modules are computed by a Python with tenure and PyTorch: name one with --python"
    );
}

#[test]
fn a_program_that_is_no_python_is_named() {
    assert_eq!(
        reason(CONFIG, Some(WorkerCommand::python("/no/such/python"))),
        "no worker computes it: /no/such/python: No such file or directory (os error 2): name a Python with --python"
    );
    let said = reason(CONFIG, Some(WorkerCommand::python("false")));
    assert!(said.contains("exit status: 1: can false import tenure and torch?"), "{said}");
}

#[test]
fn datatypes_that_pytorch_does_not_have_are_refused_before_anything_is_started() {
    let config = CONFIG.replacen("FP32", "BYTES", 1);
    let said = reason(&config, Some(WorkerCommand::python("/no/such/python")));
    assert!(said.starts_with("tensor \"x\" cannot be of BYTES"), "{said}");
}

#[test]
fn a_python_that_lacks_tenure_is_started_once_for_all_models() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    fs::create_dir(&models).unwrap();
    ["a", "b", "c"].iter().for_each(|name| write(&models.join(name), CONFIG));
    let starts = folder.path().join("starts");
    let script = format!("echo started >> {}; exit 1", starts.display());
    let mut options = ServingOptions::new(&models, 1 << 20);
    options.python = Some(WorkerCommand { program: "sh".into(), arguments: vec!["-c".into(), script.into()] });
    let serving = Serving::start(options, Architectures::default()).unwrap();
    for entry in serving.index() {
        let reason =
            "no worker computes it: exit status: 1: can sh import tenure and torch? name another with --python";
        assert_eq!(entry.reason, reason);
    }
    assert_eq!(fs::read_to_string(starts).unwrap(), "started\n");
}
