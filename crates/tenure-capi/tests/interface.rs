//! The library and its header, as a C program meets them.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Builds `libtenure.so`, as `cargo test` does not, and says where it is.
fn library() -> PathBuf {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let arguments = ["build", "--offline", "--package", "tenure-capi", "--message-format", "json"];
    let output = Command::new(cargo).args(arguments).current_dir(CRATE).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    let messages = messages.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let built = messages.filter(|message| message["target"]["name"] == "tenure");
    let files = built.filter_map(|message| Some(message["filenames"].as_array()?[0].as_str()?.to_owned()));
    files.map(PathBuf::from).find(|file| file.extension().is_some_and(|name| name == "so")).unwrap()
}

#[test]
fn a_c_program_gets_what_the_header_says() {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("skipped: there is no C compiler `cc`");
        return;
    }
    let library = library();
    let library = library.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let source = Path::new(CRATE).join("tests/program.c");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(Path::new(CRATE).join("include"))
        .arg(&source)
        .arg("-L")
        .arg(library)
        .args(["-ltenure", "-o"])
        .arg(&program)
        .status();
    assert!(compiled.unwrap().success());
    let output = Command::new(program).env("LD_LIBRARY_PATH", library).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_header_declares_every_function_and_no_other() {
    let names = |text: &str, before: &str| -> BTreeSet<String> {
        let after = text.split(before).skip(1);
        after.map(|rest| rest.split('(').next().unwrap().to_owned()).collect()
    };
    let source = fs::read_to_string(Path::new(CRATE).join("src/lib.rs")).unwrap();
    let header = fs::read_to_string(Path::new(CRATE).join("include/tenure.h")).unwrap();
    let code: String = header.split("*/").filter_map(|part| part.split("/*").next()).collect();
    let declared = code.split([' ', '*', '\n']).filter(|word| word.starts_with("tenure_") && word.contains('('));
    let declared: BTreeSet<String> = declared.map(|word| word.split('(').next().unwrap().to_owned()).collect();
    assert_eq!(declared, names(&source, "extern \"C\" fn "));
}
