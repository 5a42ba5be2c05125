//! Tests of the library and its headers, from C programs.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, iter};

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
        eprintln!("skipped: `{program}` was not found");
    }
    found
}

#[test]
fn a_c_program_gets_what_the_header_says() {
    run("program.c");
}

#[test]
fn c_programs_share_a_cache() {
    run("shared_cache.c");
}

#[test]
fn a_c_program_computes_with_tensors() {
    run("tensors.c");
}

#[test]
fn a_c_program_launches_kernels_and_calls_its_own_operation() {
    run("kernels.c");
}

#[test]
fn a_cpp_program_computes_with_tensors() {
    run("tensors.cpp");
}

#[test]
fn a_shim_without_pytorch_gets_what_the_table_says() {
    run("torch_table.c");
}

#[test]
fn a_shim_of_the_cpu_without_pytorch_gets_what_the_table_says() {
    run("cpu_table.c");
}

/// Compiles a C or C++ program of this folder with the headers, and runs it.
fn run(name: &str) {
    let (compiler, standard) = if name.ends_with(".c") { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
    if !has(compiler) {
        return;
    }
    let library = library();
    let library = library.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let source = Path::new(CRATE).join("tests").join(name);
    let headers = folder.path().join("include");
    tenure_capi::headers::write(&headers).unwrap();
    let compiled = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(Path::new(CRATE).join("include"))
        .arg("-I")
        .arg(headers)
        .arg(&source)
        .arg("-L")
        .arg(library)
        .args(["-ltenure_capi", "-lm", "-o"])
        .arg(&program)
        .status();
    assert!(compiled.unwrap().success());
    // NVRTC is found there too.
    let inherited = env::var_os("LD_LIBRARY_PATH");
    let folders = iter::once(library.to_owned()).chain(inherited.iter().flat_map(env::split_paths));
    let folders = env::join_paths(folders).unwrap();
    let output = Command::new(program).env("LD_LIBRARY_PATH", folders).output().unwrap();
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
    compare("tenure.h", &["src/lib.rs", "src/shared_cache.rs"]);
    let files = ["access", "autograd", "call", "handle", "operation", "value"];
    let files: Vec<String> = files.map(|file| format!("src/tensors/{file}.rs")).into();
    compare("tenure_tensor.h", &files);
    compare("tenure_cuda.h", &["src/tensors/cuda.rs"]);
}

fn compare(header: &str, sources: &[impl AsRef<Path>]) {
    let read = |path: &Path| fs::read_to_string(Path::new(CRATE).join(path)).unwrap();
    let source: String = sources.iter().map(|path| read(path.as_ref())).collect();
    let header = read(&Path::new("include").join(header));
    let code: String = header.split("*/").filter_map(|part| part.split("/*").next()).collect();
    // What follows is defined in the header itself.
    let code = code.split("static inline ").next().unwrap_or_default();
    let declared = code.split([' ', '*', '\n']).filter(|word| {
        // A pointer to a function is in parentheses.
        word.starts_with("tenure_") && word.split('(').next() != Some(word) && !word.contains(")(")
    });
    let declared: BTreeSet<String> = declared.map(|word| word.split('(').next().unwrap().to_owned()).collect();
    let defined = source.split("extern \"C\" fn ").skip(1);
    let defined: BTreeSet<String> = defined.map(|rest| rest.split('(').next().unwrap().to_owned()).collect();
    assert_eq!(declared, defined);
}
