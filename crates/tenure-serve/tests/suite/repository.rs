//! Tests of how a repository reads folders: good, bad and hostile ones.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;
use tenure_serve::repository::{
    Batching, Changes, Config, Datatype, Dimension, ModelName, Repository, TensorSpec, WeightDtype,
};

const SMALL: &str = r#"
architecture = "mlp"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 2] }]
"#;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Writes a model's folder with weights of some bytes.
fn write(root: &Path, name: &str, config: &str) -> PathBuf {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), config).unwrap();
    fs::write(folder.join("model.safetensors"), [0; 100]).unwrap();
    folder
}

/// Returns the only model's configuration, or the reason why there is none.
fn read(config: &str) -> Result<Config, String> {
    let root = folder();
    write(root.path(), "m", config);
    outcome(root.path())
}

fn outcome(root: &Path) -> Result<Config, String> {
    let changes = Repository::new(root).scan().unwrap();
    let folder = fs::canonicalize(root).unwrap();
    match (&changes.added[..], &changes.broken[..]) {
        ([model], []) => Ok(model.config.clone()),
        ([], [broken]) => Err(broken.reason.to_string().replace(&format!("{}/m/", folder.display()), "")),
        _ => panic!("{changes:?}"),
    }
}

/// Returns the names of added, changed, removed and broken models.
fn names(changes: &Changes) -> [Vec<&str>; 4] {
    [
        changes.added.iter().map(|model| model.name.as_str()).collect(),
        changes.changed.iter().map(|model| model.name.as_str()).collect(),
        changes.removed.iter().map(ModelName::as_str).collect(),
        changes.broken.iter().map(|broken| broken.name.as_str()).collect(),
    ]
}

#[test]
fn everything_that_may_be_said_is_read() {
    let root = folder();
    let text = r#"
        architecture = "resnet152"
        weights = "parts/model.safetensors.index.json"
        dtype = "bfloat16"
        config = "config.json"
        priority = -3
        pinned = true
        timeout_ms = 2000
        [[inputs]]
        name = "image"
        datatype = "UINT8"
        shape = [-1, 3, 224, 224]
        [[outputs]]
        name = "logits"
        datatype = "FP32"
        shape = [-1, 1000]
        [batching]
        max_rows = 32
        max_delay_ms = 2
    "#;
    let folder = write(root.path(), "m", text);
    fs::write(folder.join("config.json"), r#"{"depth": 152}"#).unwrap();
    fs::create_dir(folder.join("parts")).unwrap();
    let index = r#"{"metadata": {}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}}"#;
    fs::write(folder.join("parts/model.safetensors.index.json"), index).unwrap();
    fs::write(folder.join("parts/1.safetensors"), [0; 30]).unwrap();
    fs::write(folder.join("parts/2.safetensors"), [0; 12]).unwrap();

    let mut repository = Repository::new(root.path());
    repository.scan().unwrap();
    let model = repository.model("m").unwrap();
    assert_eq!((model.weight_bytes(), model.weights.len()), (42, 2));
    let tensor = |name: &str, datatype, shape: &[i64]| {
        let shape = shape.iter().map(|size| Dimension::try_from(*size).unwrap()).collect();
        TensorSpec { name: name.into(), datatype, shape }
    };
    let expected = Config {
        architecture: "resnet152".into(),
        python: None,
        options: serde_json::from_str(r#"{"depth": 152}"#).unwrap(),
        weights: Some("parts/model.safetensors.index.json".into()),
        dtype: Some(WeightDtype::Bfloat16),
        inputs: vec![tensor("image", Datatype::Uint8, &[-1, 3, 224, 224])],
        outputs: vec![tensor("logits", Datatype::Fp32, &[-1, 1000])],
        batching: Batching { max_rows: 32.try_into().unwrap(), max_delay: Duration::from_millis(2) },
        priority: -3,
        is_pinned: true,
        timeout: Some(Duration::from_secs(2)),
        max_tokens: None,
    };
    assert_eq!(model.config, expected);
}

#[test]
fn missing_keys_have_defaults() {
    let config = read(SMALL).unwrap();
    assert_eq!((config.weights.as_deref(), config.dtype, config.priority), (Some("model.safetensors"), None, 0));
    assert_eq!((config.batching, config.is_pinned, config.timeout), (Batching::default(), false, None));
    assert!(config.options.is_empty());
    let config = read(&format!("{SMALL}\n[options]\ndepth = 3\nnested.rate = 0.5")).unwrap();
    assert_eq!(serde_json::to_string(&config.options).unwrap(), r#"{"depth":3,"nested":{"rate":0.5}}"#);
}

#[test]
fn an_error_names_the_line_and_what_is_allowed() {
    let with = |line: &str| read(&format!("{line}{SMALL}")).unwrap_err();
    assert_eq!(with("priority = 11"), r#"config.toml:1: a priority is from -10 to 10, not 11: "priority = 11""#);
    assert_eq!(
        with("\ndtype = \"int4\""),
        "config.toml:2: unknown variant `int4`, expected one of `float16`, `bfloat16`, `float32`, `float64`: \
         \"dtype = \\\"int4\\\"\""
    );
    assert!(with("timeout_ms = 0").starts_with("config.toml:1: invalid value: integer `0`, expected a nonzero u64"));
    assert!(
        with("weight = \"a\"").starts_with("config.toml:1: unknown field `weight`, expected one of `architecture`")
    );
    assert_eq!(
        with(r#"weights = "../other/model.safetensors""#),
        r#"config.toml: weights is "../other/model.safetensors": it must be a path inside the model's folder"#
    );
    assert!(with(r#"weights = "/etc/passwd""#).contains("inside the model's folder"));
    assert!(with(r#"weights = """#).contains("inside the model's folder"));
    assert!(with(r#"weights = "a\nb""#).contains("inside the model's folder"));
    assert!(with(r#"weights = "none.safetensors""#).starts_with("none.safetensors: No such file"));
    assert!(with("= 3").starts_with("config.toml:1: "));

    let after = |lines: &str| read(&format!("{SMALL}{lines}")).unwrap_err();
    assert!(after("[versions]\n1 = {}").starts_with("config.toml:5: unknown field `versions`"));
    assert!(
        after("[batching]\nmax_rows = 0").starts_with("config.toml:6: invalid value: integer `0`, expected a nonzero")
    );
    assert_eq!(
        after("config = \"config.json\"\n[options]"),
        "config.toml: config is there: it goes with no [options]: leave one of them out"
    );

    let instead = |from: &str, to: &str| read(&SMALL.replacen(from, to, 1)).unwrap_err();
    assert!(instead("\"mlp\"", "\"\"").starts_with("config.toml:2: it must not be empty"));
    assert!(instead("-1, 4", "-1, 0").starts_with("config.toml:3: a size is -1, which is any, or at least 1"));
    assert!(instead("FP32", "float").starts_with("config.toml:3: unknown variant `float`, expected one of `BOOL`"));
    assert_eq!(
        instead("architecture = \"mlp\"", ""),
        "config.toml: architecture is not there: name one, or a function as python"
    );
    let fixed = format!("{}[batching]\nmax_rows = 2", SMALL.replace("-1, 2", "7, 2"));
    assert!(read(&fixed).unwrap_err().starts_with("config.toml: outputs has \"y\" of a first size that is not -1"));
    let tensor = r#"{ name = "x", datatype = "FP32", shape = [] }"#;
    let twice = format!("architecture = \"a\"\ninputs = [{tensor}, {tensor}]\noutputs = []");
    assert_eq!(read(&twice).unwrap_err(), "config.toml: inputs has \"x\" twice: names must differ");
    let none = format!("architecture = \"a\"\ninputs = [{tensor}]\noutputs = []");
    assert_eq!(read(&none).unwrap_err(), "config.toml: outputs is empty: a model has at least one");
}

#[test]
fn names_are_parts_of_a_path_and_of_a_url() {
    for name in ["a", "bert-base_v1.0", "7B", &"x".repeat(128)] {
        assert_eq!(name.parse::<ModelName>().unwrap().as_str(), name);
    }
    for name in ["", ".", "..", ".hidden", "a/b", "a b", "größe", "a\0", &"x".repeat(129)] {
        assert!(name.parse::<ModelName>().unwrap_err().to_string().contains("invalid model name"));
    }
}

#[test]
fn a_scan_says_what_changed_and_the_others_serve_on() {
    let root = folder();
    write(root.path(), "a", SMALL);
    write(root.path(), "b", SMALL);
    write(root.path(), "no name", SMALL);
    write(root.path(), ".git", SMALL);
    fs::write(root.path().join("README.md"), "not a model").unwrap();
    let mut repository = Repository::new(root.path());
    let first = repository.scan().unwrap();
    assert_eq!(names(&first), [vec!["a", "b"], vec![], vec![], vec!["no name"]]);
    assert!(repository.scan().unwrap().is_empty(), "what was said once is not said again");

    // A comment changes nothing.
    write(root.path(), "c", SMALL);
    fs::write(root.path().join("a/config.toml"), format!("# A comment\n{SMALL}")).unwrap();
    fs::write(root.path().join("b/config.toml"), "architecture = 7").unwrap();
    let broken = repository.scan().unwrap();
    assert_eq!(names(&broken), [vec!["c"], vec![], vec!["b"], vec!["b"]]);
    assert_eq!(repository.broken().map(|broken| broken.name.as_str()).collect::<Vec<_>>(), ["b", "no name"]);
    assert!(repository.model("b").is_none() && repository.models().count() == 2);

    fs::write(root.path().join("a/config.toml"), format!("priority = 1{SMALL}")).unwrap();
    fs::write(root.path().join("b/config.toml"), SMALL).unwrap();
    fs::remove_dir_all(root.path().join("c")).unwrap();
    assert_eq!(names(&repository.scan().unwrap()), [vec!["b"], vec!["a"], vec!["c"], vec![]]);

    // The weights are rewritten, with a new size or a new time.
    fs::write(root.path().join("a/model.safetensors"), [1; 101]).unwrap();
    let file = File::options().append(true).open(root.path().join("b/model.safetensors")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(names(&repository.scan().unwrap()), [vec![], vec!["a", "b"], vec![], vec![]]);

    let mut nowhere = Repository::new(root.path().join("gone"));
    assert!(nowhere.scan().unwrap_err().to_string().contains("No such file"));
}

#[test]
fn weights_are_not_read() {
    let root = folder();
    let weights = write(root.path(), "m", SMALL).join("model.safetensors");
    // The file is larger than could be read in a test, or held in memory.
    File::create(weights).unwrap().set_len(1 << 40).unwrap();
    let changes = Repository::new(root.path()).scan().unwrap();
    assert_eq!(changes.added[0].weight_bytes(), 1 << 40);
}

#[test]
fn links_lead_into_the_repository_or_are_a_models_folder() {
    let root = folder();
    let elsewhere = folder();
    let shared = root.path().join(".shared");
    fs::write(&shared, [0; 7]).unwrap();
    let linked = |target: &Path| {
        let weights = write(root.path(), "m", SMALL).join("model.safetensors");
        fs::remove_file(&weights).unwrap();
        symlink(target, weights).unwrap();
        outcome(root.path())
    };
    assert!(linked(&shared).is_ok());
    let outside = write(elsewhere.path(), "m", SMALL);
    let refused = linked(&outside.join("model.safetensors")).unwrap_err();
    assert!(refused.contains("out of the repository: copy the file, or make the model's folder the link"), "{refused}");
    assert!(linked(&root.path().join("nowhere")).unwrap_err().starts_with("model.safetensors: No such file"));
    assert!(linked(root.path()).unwrap_err().ends_with("not a file"));

    fs::remove_dir_all(root.path().join("m")).unwrap();
    symlink(&outside, root.path().join("m")).unwrap();
    assert!(outcome(root.path()).is_ok());
    fs::remove_dir_all(&outside).unwrap();
    assert!(outcome(root.path()).unwrap_err().contains("No such file"));
}

#[test]
fn an_index_leads_nowhere_else() {
    let indexed = |index: &str| {
        let root = folder();
        let folder = write(root.path(), "m", &format!("weights = \"index.json\"{SMALL}"));
        fs::write(folder.join("index.json"), index).unwrap();
        outcome(root.path()).map(|_| ()).unwrap_err()
    };
    assert_eq!(
        indexed(r#"{"weight_map": {"a": "../../x"}}"#),
        "index.json: weight_map[\"a\"] is \"../../x\": it must be a path inside the model's folder"
    );
    assert!(indexed(r#"{"weight_map": {}}"#).contains("weight_map is empty"));
    assert!(indexed(r#"{"weights": 1}"#).contains("missing field `weight_map` at line 1"));
    assert_eq!(
        indexed(r#"{"weight_map": {"a": "x"}}"#),
        "index.json: weight_map[\"a\"] is \"x\", which is not there: copy or download that file"
    );
}

#[test]
fn text_without_end_is_not_read_to_its_end() {
    let root = folder();
    let config = write(root.path(), "m", SMALL).join("config.toml");
    File::create(&config).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(outcome(root.path()).unwrap_err(), "config.toml: longer than 1048576 bytes");
    fs::write(&config, [0xff; 10]).unwrap();
    assert!(outcome(root.path()).unwrap_err().starts_with("config.toml: invalid utf-8"));
    let deep = format!("{SMALL}options.a = {}", "[".repeat(100_000));
    assert!(read(&deep).unwrap_err().starts_with("config.toml:5: "));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn whatever_a_configuration_says_is_taken_or_refused_in_one_line(
        at in 0..200_usize,
        cut in 0..6_usize,
        inserted in prop_oneof!["\\PC{0,6}", "[\\[\\]{}\"'=.,#\\n0-9-]{0,6}"],
    ) {
        let mut text: Vec<char> = format!("{SMALL}priority = 2\n[options]\nd = 2020-01-01\n[batching]\nmax_rows = 3\n").chars().collect();
        let at = at.min(text.len());
        text.splice(at..(at + cut).min(text.len()), inserted.chars());
        match read(&text.iter().collect::<String>()) {
            Ok(config) => prop_assert!(!config.inputs.is_empty() && (-10..=10).contains(&config.priority)),
            Err(refused) => prop_assert!(!refused.contains('\n'), "{refused}"),
        }
    }
}

#[test]
fn a_function_of_python_takes_the_place_of_an_architecture() {
    let root = folder();
    let with = |python: &str| SMALL.replacen("architecture = \"mlp\"", python, 1);
    let model = write(root.path(), "m", &with("python = \"code/model.py:load\""));
    let mut repository = Repository::new(root.path());
    repository.scan().unwrap();
    assert!(repository.broken().next().unwrap().reason.to_string().contains("code/model.py: No such file"));
    fs::create_dir(model.join("code")).unwrap();
    fs::write(model.join("code/model.py"), "def load(folder): ...").unwrap();
    let added = repository.scan().unwrap().added;
    let python = added[0].config.python.as_ref().unwrap();
    assert_eq!((&*python.source, &*python.function, python.file()), ("code/model.py", "load", Some("code/model.py")));
    assert_eq!((&*added[0].config.architecture, added[0].weights.len()), ("pytorch", 0));
    assert_eq!(added[0].folder, fs::canonicalize(&model).unwrap());
    // Other code makes another model, and so do other weights in the configuration.
    fs::write(model.join("code/model.py"), "def load(folder): pass").unwrap();
    assert_eq!(names(&repository.scan().unwrap())[1], ["m"]);
    write(root.path(), "m", &with("python = \"package.models:load\"\nweights = \"model.safetensors\""));
    let changed = repository.scan().unwrap().changed;
    assert_eq!((changed[0].weights.len(), changed[0].code.is_none()), (1, true));
}

#[test]
fn code_is_a_file_of_the_folder_or_a_module_and_goes_with_no_architecture() {
    let with = |lines: &str| read(&SMALL.replacen("architecture = \"mlp\"", lines, 1)).unwrap_err();
    let names = "it must be \"FILE.py:FUNCTION\", a file inside the model's folder, or \"MODULE:FUNCTION\"";
    for python in
        ["../model.py:load", "/model.py:load", "model.py", "model.py:", "model.py:a.b", "a/b:load", ":load", "1a:load"]
    {
        assert_eq!(with(&format!("python = {python:?}")), format!("config.toml: python is {python:?}: {names}"));
    }
    for line in ["architecture = \"mlp\"", "options = {}", "config = \"config.json\"", "dtype = \"float32\""] {
        let key = line.split(' ').next().unwrap();
        assert_eq!(
            with(&format!("python = \"model.py:load\"\n{line}")),
            format!("config.toml: {key} is there: it goes with no python: leave one of them out")
        );
    }
}

#[test]
fn code_that_a_link_brings_from_outside_is_refused() {
    let root = folder();
    let outside = folder();
    fs::write(outside.path().join("model.py"), "def load(folder): ...").unwrap();
    let model = write(root.path(), "m", &SMALL.replacen("architecture = \"mlp\"", "python = \"model.py:load\"", 1));
    symlink(outside.path().join("model.py"), model.join("model.py")).unwrap();
    assert!(outcome(root.path()).unwrap_err().contains("out of the repository"));
}

#[test]
fn a_folder_that_is_a_model_is_served_alone() {
    let root = folder();
    let model = write(root.path(), "m", SMALL);
    write(root.path(), "beside", SMALL);
    let names = |path: &Path| {
        let mut repository = Repository::new(path);
        repository.scan().unwrap();
        repository.models().map(|model| model.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&model), ["m"]);
    assert_eq!(names(&model.join("../m/.")), ["m"]);
    assert_eq!(names(root.path()), ["beside", "m"]);
    let mut repository = Repository::new(&model);
    repository.scan().unwrap();
    fs::remove_dir_all(&model).unwrap();
    assert_eq!(repository.scan().unwrap().removed.len(), 1);
}
