//! Tests of the library and its headers, from C programs.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the path of `libtenure_capi.so`, which cargo has built beside this program.
fn library() -> PathBuf {
    let library = env::current_exe().unwrap().with_file_name("libtenure_capi.so");
    assert!(library.is_file(), "cargo has built no {}", library.display());
    library
}

/// Returns whether a program can be run here, and prints a line if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: there is no `{program}`");
    }
    found
}

#[test]
fn a_c_program_gets_what_the_header_says() {
    run_c("program.c");
}

#[test]
fn a_shim_without_pytorch_gets_what_the_table_says() {
    run_c("torch_table.c");
}

#[test]
fn a_shim_of_the_cpu_without_pytorch_gets_what_the_table_says() {
    run_c("cpu_table.c");
}

/// Compiles a C program of this folder, and runs it.
fn run_c(name: &str) {
    if !has("cc") {
        return;
    }
    let library = library();
    let library = library.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let source = Path::new(CRATE).join("tests").join(name);
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(Path::new(CRATE).join("include"))
        .arg(&source)
        .arg("-L")
        .arg(library)
        .args(["-ltenure_capi", "-o"])
        .arg(&program)
        .status();
    assert!(compiled.unwrap().success());
    let output = Command::new(program).env("LD_LIBRARY_PATH", library).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_benchmark_beside_pytorch_runs_without_it() {
    if !has("g++") || !has("python3") {
        return;
    }
    let library = library();
    let folder = tempfile::tempdir().unwrap();
    let figures = folder.path().join("figures.json");
    let output = Command::new("python3")
        .arg(Path::new(CRATE).join("../../bench/pytorch/bench.py"))
        .args(["--driver", "sim", "--scale", "0.01", "--repetitions", "1", "--only", "to 1 MiB", "--library"])
        .arg(library)
        .arg("--json")
        .arg(&figures)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(figures).unwrap()).unwrap();
    let results = figures["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    assert!(results.iter().all(|result| result["tenure"]["median_ns"].as_f64().unwrap() > 0.0), "{results:?}");
}

#[test]
fn the_header_declares_every_function_and_no_other() {
    let source = fs::read_to_string(Path::new(CRATE).join("src/lib.rs")).unwrap();
    let header = fs::read_to_string(Path::new(CRATE).join("include/tenure.h")).unwrap();
    let code: String = header.split("*/").filter_map(|part| part.split("/*").next()).collect();
    let declared = code.split([' ', '*', '\n']).filter(|word| word.starts_with("tenure_") && word.contains('('));
    let declared: BTreeSet<String> = declared.map(|word| word.split('(').next().unwrap().to_owned()).collect();
    let defined = source.split("extern \"C\" fn ").skip(1);
    let defined: BTreeSet<String> = defined.map(|rest| rest.split('(').next().unwrap().to_owned()).collect();
    assert_eq!(declared, defined);
}
