//! `tenure embed`, run as its users run it.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// A BERT of a few numbers.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-nn/tests/goldens/tiny_bert");

fn embed(args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.arg("embed").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn vectors(output: &Output) -> Vec<Vec<f32>> {
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = str::from_utf8(&output.stdout).unwrap().lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_text_is_a_line_of_numbers_in_its_place() {
    let found = vectors(&embed(&["--weights", TINY, "the cat", "a dog on the mat, a cat", "the cat"], b""));
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 8]);
    for vector in &found {
        let length: f32 = vector.iter().map(|number| number * number).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }
    assert_eq!(found[0], found[2]);
    assert_ne!(found[0], found[1]);
}

#[test]
fn texts_are_read_from_standard_input_and_batches_change_nothing() {
    let texts = ["the cat", "", "a dog on the mat, a cat", "dog"];
    let all = vectors(&embed(&[&["--weights", TINY][..], &texts].concat(), b""));
    for size in ["1", "3", "32"] {
        let found = vectors(&embed(&["--weights", TINY, "--batch-size", size], texts.join("\n").as_bytes()));
        assert_eq!(found.len(), texts.len());
        let apart = found.iter().flatten().zip(all.iter().flatten()).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < 1e-6);
    }
    assert!(vectors(&embed(&["--weights", TINY], b"")).is_empty());
}

#[test]
fn vectors_that_are_not_finite_are_an_error_and_not_printed() {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(TINY).unwrap().map(Result::unwrap).filter(|file| file.path().is_file()) {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let header_bytes = u64::from_le_bytes(*weights.first_chunk().unwrap()) as usize;
    for number in weights[8 + header_bytes..].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    fs::write(&path, weights).unwrap();
    let output = embed(&["--weights", folder.path().to_str().unwrap(), "the cat"], b"");
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    assert!(String::from_utf8(output.stderr).unwrap().contains("contains a NaN or an infinity"));
}

#[test]
fn unusable_input_gets_one_line() {
    let complaint = |args: &[&str], input: &[u8]| {
        let output = embed(args, input);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let hint = "a sentence encoder is a folder with config.json, tokenizer.json and model.safetensors";
    let missing = complaint(&["--weights", TINY, "--device", "cuda:200", "text"], b"");
    assert!(missing.starts_with("tenure: --device cuda:200: "), "{missing}");
    assert_eq!(
        complaint(&["--weights", "nowhere", "text"], b""),
        format!("tenure: nowhere/config.json: not there: {hint}\n")
    );
    let output = embed(&["--weights", TINY], b"a\nb\n\xff\nc\n");
    assert_eq!((output.status.code(), output.stdout.iter().filter(|byte| **byte == b'\n').count()), (Some(2), 2));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("tenure: standard input, line 3: "));
}
