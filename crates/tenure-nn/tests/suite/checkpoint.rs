//! Tests of weights and checkpoints on disk, also when the writer is interrupted.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use tenure_nn::checkpoint::{Checkpoint, Progress, Weights, abandon_writes, check_writable, save, write_atomically};
use tenure_nn::optim::{Adagrad, Adam, Optimizer, ScalerState, Schedule, Sgd};
use tenure_nn::{Buffer, Error, Module, Parameter, Source, StateError, module};
use tenure_tensor::random::{Generator, GeneratorState};
use tenure_tensor::{DType, Device, Tensor};

use crate::fixtures::{expect_error, path_in_folder};

/// The model y = scale x + shift.
struct Affine {
    scale: Parameter,
    shift: Parameter,
    seen: Buffer,
}
module!(Affine { scale, shift, seen });

fn affine(values: [f32; 2]) -> Affine {
    let parameter = |name, value| Parameter::new(name, Tensor::from_slice(&[value], &[1]).unwrap()).unwrap();
    let seen = Buffer::new("seen", Tensor::from_slice(&[7_i64], &[]).unwrap());
    Affine { scale: parameter("layer.scale", values[0]), shift: parameter("layer.shift", values[1]), seen }
}

fn values(model: &Affine) -> [f32; 2] {
    [model.scale.item().unwrap(), model.shift.item().unwrap()]
}

/// Makes a step on random numbers.
fn step(model: &Affine, optimizer: &mut Optimizer, generator: &Generator) {
    let x = Tensor::from_slice(&[(generator.next_u64() % 100) as f32 / 50.0], &[1]).unwrap();
    optimizer.zero_grad();
    let y = model.scale.mul(&x).unwrap().add(&*model.shift).unwrap();
    y.mul(&y).unwrap().backward().unwrap();
    optimizer.step().unwrap();
}

#[test]
fn a_run_goes_on_bit_for_bit() {
    let (_folder, path) = path_in_folder("run.safetensors");
    let model = affine([0.3, -0.2]);
    let generator = Generator::new(11);
    let mut optimizer = Optimizer::new(model.parameters(), 0.01, Adam::default());
    (0..5).for_each(|_| step(&model, &mut optimizer, &generator));
    let mut progress = Progress { step: 5, epoch: 1, batch: 2, ..Progress::default() };
    progress.schedule = Some(Schedule::Constant.with_warmup(3));
    progress.set_random("data", generator.state());
    progress.series.insert("loss".to_owned(), vec![0.1, f64::NAN.copysign(-1.0), -0.0, f64::INFINITY, 5e-324]);
    Checkpoint::save(&path, &model, &optimizer, &progress).unwrap();
    (0..5).for_each(|_| step(&model, &mut optimizer, &generator));

    let checkpoint = Checkpoint::open(&path).unwrap();
    let bits = |progress: &Progress| progress.series["loss"].iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(checkpoint.progress()), bits(&progress));
    let without = |progress: &Progress| Progress { series: BTreeMap::new(), ..progress.clone() };
    assert_eq!(without(checkpoint.progress()), without(&progress));
    let again = affine([0.0, 0.0]);
    // The learning rate comes from the checkpoint too.
    let mut optimizer = Optimizer::new(again.parameters(), 0.5, Adam::default());
    checkpoint.load(&again, &mut optimizer).unwrap();
    assert_eq!(optimizer.groups()[0].lr(), 0.01);
    let generator = Generator::new(0);
    generator.set_state(checkpoint.progress().random("data").unwrap());
    (0..5).for_each(|_| step(&again, &mut optimizer, &generator));
    assert_eq!(values(&again).map(f32::to_bits), values(&model).map(f32::to_bits));
}

#[test]
fn progress_survives_the_largest_numbers() {
    let mut progress = Progress { step: u64::MAX, ..Progress::default() };
    progress.set_random("a", GeneratorState::new(u64::MAX, u64::MAX - 1));
    let text = serde_json::to_string(&progress).unwrap();
    assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
}

#[test]
fn every_dtype_comes_back() {
    let (_folder, path) = path_in_folder("all.safetensors");
    let tensors: BTreeMap<String, Tensor> = DType::ALL
        .into_iter()
        .map(|dtype| (dtype.to_string(), Tensor::full(&[2, 3], 1, dtype, Device::CPU).unwrap()))
        .chain([("empty".to_owned(), Tensor::zeros(&[0, 4], DType::F32, Device::CPU).unwrap())])
        .chain([(
            "turned".to_owned(),
            Tensor::from_slice(&[1_i16, 2, 3, 4], &[2, 2]).unwrap().transpose(0, 1).unwrap(),
        )])
        .collect();
    save(&path, tensors.iter().map(|(name, tensor)| (name.clone(), tensor)), ("format", "pt")).unwrap();
    let read = Weights::open(&path).unwrap();
    assert_eq!(read.names(), tensors.keys().cloned().collect::<Vec<_>>());
    assert_eq!(read.metadata("format"), Some("pt"));
    for (name, tensor) in &tensors {
        let found = read.tensor(name).unwrap();
        assert_eq!((found.dtype(), found.sizes()), (tensor.dtype(), tensor.sizes()), "{name}");
        assert_eq!(found.to_bytes().unwrap(), tensor.to_bytes().unwrap(), "{name}");
    }
}

#[test]
fn weights_may_be_in_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let model = affine([1.0, 2.0]);
    for (number, (name, tensor)) in (1..).zip(model.state()) {
        let file = folder.path().join(format!("model-{number}.safetensors"));
        save(&file, [(name.to_owned(), tensor)], ("format", "pt")).unwrap();
    }
    let index = |third: &str| {
        let map = serde_json::json!({"metadata": {"total_size": 16}, "weight_map": {
            "layer.scale": "model-1.safetensors", "layer.shift": "model-2.safetensors", "seen": third}});
        fs::write(folder.path().join("model.safetensors.index.json"), map.to_string()).unwrap();
    };
    index("model-3.safetensors");
    let other = affine([0.0, 0.0]);
    other.load(&Weights::open(folder.path()).unwrap()).unwrap();
    assert_eq!(values(&other), [1.0, 2.0]);

    let path = folder.path().join("model.safetensors.index.json");
    fs::write(&path, format!("\u{feff}{}", fs::read_to_string(&path).unwrap())).unwrap();
    assert!(Weights::open(&path).is_ok(), "a byte order mark is skipped");

    index("model-1.safetensors");
    expect_error(Weights::open(folder.path()), "seen is not in it");
    index("model-4.safetensors");
    let error = Weights::open(folder.path()).err().unwrap().to_string();
    let missing = folder.path().join("model-4.safetensors");
    assert!(
        error.starts_with(&format!("{}: not there, though {} names it", missing.display(), path.display())),
        "{error}"
    );
    index("../model-3.safetensors");
    expect_error(Weights::open(folder.path()), "is not a file name");
}

#[test]
fn wrong_names_and_sizes_are_said_and_nothing_changes() {
    let model = affine([1.0, 2.0]);
    let of = |names: &[(&str, usize)]| {
        names
            .iter()
            .map(|(name, size)| ((*name).to_owned(), Tensor::zeros(&[*size], DType::F32, Device::CPU).unwrap()))
            .collect::<BTreeMap<_, _>>()
    };
    let error = model.load(&of(&[("layer.scale", 1), ("layer.bias", 1)])).unwrap_err();
    assert_eq!(error.to_string(), "the names are not the model's; missing: layer.shift, seen; unexpected: layer.bias");
    let error = model.load(&of(&[("layer.scale", 1), ("layer.shift", 3)])).unwrap_err();
    assert!(matches!(error, Error::State(StateError::Names { .. })));
    let error = model.load_known(&of(&[("layer.scale", 1), ("layer.shift", 3)])).unwrap_err();
    assert_eq!(error.to_string(), "layer.shift: the model has sizes [1], got [3]");
    let error = model.load_known(&of(&[("layer.scale", 2), ("layer.shift", 3)])).unwrap_err();
    assert_eq!(error.to_string(), "layer.scale: the model has sizes [1], got [2]; and 1 more of other sizes");
    assert_eq!(values(&model), [1.0, 2.0]);
}

#[test]
fn bytes_that_are_no_checkpoint_are_an_error() {
    let (_folder, path) = path_in_folder("run.safetensors");
    let model = affine([1.0, 2.0]);
    let optimizer = Optimizer::new(model.parameters(), 0.1, Adam::default());
    Checkpoint::save(&path, &model, &optimizer, &Progress::default()).unwrap();
    let whole = fs::read(&path).unwrap();
    for cut in [0, 4, 20, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        assert!(matches!(Checkpoint::open(&path).err().unwrap(), Error::Checkpoint(_)), "cut at {cut}");
    }
    let said = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Weights::open(&path).err().unwrap().to_string()
    };
    let length = whole.len();
    let cut = said(&whole[..length - 3]);
    assert!(cut.contains(&format!("its header says {length}: 3 are missing at its end; copy or download")), "{cut}");
    let longer = said(&[&whole[..], b"ab"].concat());
    assert!(longer.contains(&format!("its header says {length}: 2 follow its last tensor")), "{longer}");
    let header = said(&whole[..20]);
    assert!(header.contains("it has 20 bytes, and the header of such a file has more"), "{header}");
    save(&path, [("a".to_owned(), &*model.scale)], ("format", "pt")).unwrap();
    expect_error(Checkpoint::open(&path), "no checkpoint");

    // A version before formats had numbers, and a future one.
    for (header, format) in [(r#"{"step": 1}"#, 0), (r#"{"format": 7, "else": []}"#, 7)] {
        save(&path, [("a".to_owned(), &*model.scale)], ("tenure", header)).unwrap();
        let error = Checkpoint::open(&path).err().unwrap().to_string();
        assert!(error.contains(&format!("a checkpoint of format {format}")) && error.contains("format 1"), "{error}");
    }
}

#[test]
fn a_checkpoint_of_another_run_changes_neither_model_nor_optimizer() {
    let (_folder, path) = path_in_folder("run.safetensors");
    let generator = Generator::new(3);
    let saved = affine([1.0, 2.0]);
    let mut adam = Optimizer::new(saved.parameters(), 0.1, Adam::default());
    step(&saved, &mut adam, &generator);
    Checkpoint::save(&path, &saved, &adam, &Progress::default()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();

    // The rule differs, in one case with the same slots, or there are more groups.
    let model = affine([5.0, 6.0]);
    let adagrad = Optimizer::new(model.parameters(), 0.2, Adagrad::default());
    let adamw = Optimizer::new(model.parameters(), 0.2, Adam::w());
    let two = Optimizer::new(vec![model.scale.clone()], 0.2, Adam::default());
    let two = two.with_group(vec![model.shift.clone()], 0.2, Adam::default());
    for (mut optimizer, rules) in [(adagrad, "adagrad"), (adamw, "adamw"), (two, "adam, adam")] {
        let error = checkpoint.load(&model, &mut optimizer).unwrap_err().to_string();
        assert_eq!(error, format!("the optimizer steps by {rules}, and what was saved is of adam"));
        assert_eq!((values(&model), optimizer.state().unwrap().len()), ([5.0, 6.0], 0));
        assert_eq!(optimizer.groups()[0].lr(), 0.2);
    }

    // The optimizer's state lacks a slot, or has one too many.
    let momentum = || Sgd { momentum: 0.9, ..Sgd::default() };
    let cases = [
        (Sgd::default(), momentum(), "not the optimizer's; missing: layer.scale.momentum_buffer"),
        (momentum(), Sgd::default(), "not the optimizer's; unexpected: layer.scale.momentum_buffer"),
    ];
    for (of_saved, of_model, expected) in cases {
        let mut sgd = Optimizer::new(saved.parameters(), 0.1, of_saved);
        step(&saved, &mut sgd, &generator);
        Checkpoint::save(&path, &saved, &sgd, &Progress::default()).unwrap();
        let mut optimizer = Optimizer::new(model.parameters(), 0.2, of_model);
        expect_error(Checkpoint::open(&path).unwrap().load(&model, &mut optimizer), expected);
        assert_eq!((values(&model), optimizer.state().unwrap().len()), ([5.0, 6.0], 0));
    }

    // The model differs.
    let other = Parameter::new("layer.scale", Tensor::zeros(&[1], DType::F32, Device::CPU).unwrap()).unwrap();
    let seen = Buffer::new("other", Tensor::zeros(&[], DType::I64, Device::CPU).unwrap());
    let other = Affine { scale: other, shift: model.shift.clone(), seen };
    let mut adam = Optimizer::new(other.parameters(), 0.1, Adam::default());
    expect_error(checkpoint.load(&other, &mut adam), "missing: other; unexpected: seen");
    assert_eq!((values(&other), adam.state().unwrap().len()), ([0.0, 6.0], 0));
}

#[test]
fn a_dtype_that_is_not_known_is_found_before_anything_changes() {
    let (_folder, path) = path_in_folder("model.safetensors");
    let two = 2.0_f32.to_le_bytes();
    let seven = 7_i64.to_le_bytes();
    let view = |dtype, shape: &[usize], bytes| safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes);
    let tensors = [
        ("layer.scale", view(safetensors::Dtype::F32, &[1], &two).unwrap()),
        ("layer.shift", view(safetensors::Dtype::F8_E4M3, &[1], &[0x38]).unwrap()),
        ("seen", view(safetensors::Dtype::I64, &[], &seven).unwrap()),
    ];
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    let model = affine([5.0, 6.0]);
    expect_error(model.load(&Weights::open(&path).unwrap()), "layer.shift is of dtype F8_E4M3");
    assert_eq!(values(&model), [5.0, 6.0]);
}

fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn a_write_that_fails_leaves_the_old_file_and_nothing_else() {
    let (folder, path) = path_in_folder("file");
    write_atomically(&path, |out| out.write_all(b"old")).unwrap();
    let error = write_atomically(&path, |out| {
        out.write_all(b"ne")?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    });
    expect_error(error, "file");
    assert_eq!((fs::read_to_string(&path).unwrap(), files(folder.path())), ("old".to_owned(), vec!["file".to_owned()]));
}

const WRITER: &str = "TENURE_TEST_WRITER";

/// Runs the calling test in a process of its own, which ends by `end` when half of a file is written. Returns the names
/// of the files that exist then.
fn end_while_writing(test: &str, end: fn()) -> Vec<String> {
    if let Some(path) = env::var_os(WRITER) {
        let _ = write_atomically(Path::new(&path), |out: &mut dyn Write| {
            out.write_all(b"half")?;
            out.flush()?;
            end();
            std::process::exit(1)
        });
        unreachable!("it ends while it writes");
    }
    let (folder, path) = path_in_folder("file");
    fs::write(&path, "old").unwrap();
    let test = format!("checkpoint::{test}");
    let child = Command::new(env::current_exe().unwrap()).args(["--exact", &test]).env(WRITER, &path).output().unwrap();
    assert!(!child.status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    files(folder.path())
}

#[test]
fn a_killed_writer_leaves_the_old_file() {
    let files = end_while_writing("a_killed_writer_leaves_the_old_file", || std::process::abort());
    assert_eq!(files.len(), 2, "the half that was written is beside it");
}

#[test]
fn a_writer_that_abandons_its_writes_leaves_nothing_else() {
    let files = end_while_writing("a_writer_that_abandons_its_writes_leaves_nothing_else", || {
        let _abandoned = abandon_writes();
        std::process::exit(1)
    });
    assert_eq!(files, ["file"]);
}

#[test]
fn a_file_that_cannot_be_written_is_found_out_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "old").unwrap();
    check_writable(&path("file")).unwrap();
    check_writable(&path("new")).unwrap();
    assert_eq!((fs::read_to_string(path("file")).unwrap(), files(folder.path())), ("old".into(), vec!["file".into()]));
    for (name, expected) in [("missing/file", "there is no folder"), ("", "it is not a regular file")] {
        let before = check_writable(&path(name)).unwrap_err().to_string();
        assert!(before.contains(expected), "{before}");
        assert_eq!(before, write_atomically(&path(name), |_| Ok(())).unwrap_err().to_string());
    }
}

#[test]
#[cfg(unix)]
fn a_device_is_not_replaced_and_a_link_leads_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    expect_error(write_atomically(Path::new("/dev/null"), |_| Ok(())), "/dev/null: it is not a regular file");
    assert!(!fs::metadata("/dev/null").unwrap().is_file());

    let file = folder.path().join("file");
    let link = folder.path().join("link");
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    write_atomically(&link, |out| out.write_all(b"new")).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn a_parameter_in_two_places_is_one() {
    let mut model = affine([2.0, 1.0]);
    model.shift = model.scale.clone();
    assert_eq!(model.parameters().len(), 1);
    assert_eq!(model.state().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["layer.scale", "seen"]);

    let mut optimizer = Optimizer::new(vec![model.scale.clone(), model.shift.clone()], 0.5, Sgd::default());
    model.scale.add(&*model.shift).unwrap().backward().unwrap();
    optimizer.step().unwrap();
    assert_eq!(values(&model), [1.0, 1.0]); // The gradient is 2, and it was applied once.

    let (_folder, path) = path_in_folder("checkpoint");
    Checkpoint::save(&path, &model, &optimizer, &Progress::default()).unwrap();
    Checkpoint::open(&path).unwrap().load(&model, &mut optimizer).unwrap();

    model.to_dtype(DType::F64).unwrap();
    assert!(model.scale.is_same(&model.shift));
    assert_eq!(model.scale.dtype(), DType::F64);
}

#[test]
fn a_number_that_could_not_be_read_again_is_not_saved() {
    let (_folder, path) = path_in_folder("checkpoint");
    let model = affine([2.0, 1.0]);
    let infinite = ScalerState { scale: f64::INFINITY, steps: 0 };
    let of_scaler = Progress { scaler: Some(infinite), ..Progress::default() };
    for (lr, progress) in [(f64::NAN, Progress::default()), (0.1, of_scaler)] {
        let optimizer = Optimizer::new(model.parameters(), lr, Sgd::default());
        let error = Checkpoint::save(&path, &model, &optimizer, &progress).unwrap_err().to_string();
        assert!(error.contains("checkpoint: not written: ") && error.contains("is not finite"), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn two_tensors_of_one_name_are_not_saved() {
    let (_folder, path) = path_in_folder("weights");
    let tensor = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
    let tensors = [("a".to_owned(), &tensor), ("a".to_owned(), &tensor)];
    expect_error(save(&path, tensors, ("key", "value")), "two tensors would be named a");
    assert!(!path.exists());
}

#[test]
fn where_a_tensor_is_in_its_file_is_told() {
    let (_folder, path) = path_in_folder("weights.safetensors");
    let model = affine([0.5, -4.0]);
    save(&path, model.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor)), ("of", "a test")).unwrap();
    let weights = Weights::open(&path).unwrap();
    let file = fs::read(&path).unwrap();
    for (name, tensor) in model.state() {
        let place = weights.place(name).unwrap();
        assert_eq!((place.path, place.sizes, place.dtype), (&*path, tensor.sizes(), tensor.dtype()));
        let bytes = &file[place.offset as usize..][..place.bytes as usize];
        assert_eq!(bytes, tensor.to_bytes().unwrap());
    }
    expect_error(weights.place("layer.else"), "layer.else");
}

#[test]
fn weights_that_git_lfs_did_not_fetch_are_a_pointer() {
    let (folder, path) = path_in_folder("model.safetensors");
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n").unwrap();
    for part in ["model.safetensors: this is a git-lfs pointer", "git lfs pull"] {
        expect_error(Weights::open(folder.path()), part);
    }
    let index = path.with_file_name("model.safetensors.index.json");
    fs::rename(&path, &index).unwrap();
    expect_error(Weights::open(&index), "model.safetensors.index.json: this is a git-lfs pointer");
}
