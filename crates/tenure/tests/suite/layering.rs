//! Tests that the dependencies between the crates are those of the table in `docs/design/overview.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const HEADING: &str = "## Crates and their dependencies";

/// A row of the table; the crates of the last row depend on none.
#[derive(Debug)]
struct Room {
    name: String,
    may_use: BTreeSet<String>,
    calls_device: bool,
}

/// The dependencies in a manifest.
#[derive(Debug, Default)]
struct Manifest {
    /// Dependencies of the library or program itself.
    uses: BTreeSet<String>,
    /// Dependencies of its tests and benchmarks.
    tests_use: BTreeSet<String>,
}

fn table() -> Vec<Room> {
    let design = fs::read_to_string(Path::new(ROOT).join("docs/design/overview.md")).unwrap();
    let (_, section) = design.split_once(HEADING).expect("the section on the crates");
    let section = section.split("\n## ").next().unwrap();
    section.lines().filter(|line| line.starts_with("| `")).map(room).collect()
}

fn room(row: &str) -> Room {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [name, may_use, calls_device] = cells[..] else { panic!("three cells in {row}") };
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(String::from).collect::<Vec<_>>();
    let name = quoted(name).remove(0);
    Room { name, may_use: quoted(may_use).into_iter().collect(), calls_device: calls_device == "yes" }
}

/// Returns what cargo writes.
fn cargo(arguments: &[&str]) -> String {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn manifests() -> BTreeMap<String, Manifest> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().map(|package| (name(package), manifest(package))).collect()
}

fn manifest(package: &Value) -> Manifest {
    let mut manifest = Manifest::default();
    for dependency in package["dependencies"].as_array().unwrap() {
        let for_tests = dependency["kind"] == "dev";
        let names = if for_tests { &mut manifest.tests_use } else { &mut manifest.uses };
        names.insert(name(dependency));
    }
    manifest
}

fn name(value: &Value) -> String {
    value["name"].as_str().unwrap().to_owned()
}

fn is_ours(name: &str) -> bool {
    name == "tenure" || name.starts_with("tenure-")
}

/// Returns whether a crate calls a device's libraries: CUDA's, by the names of such crates.
fn is_device_library(name: &str) -> bool {
    ["cuda", "cublas", "cudnn", "nccl", "nvrtc", "nvml"].iter().any(|library| name.contains(library))
}

fn ours(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().filter(|name| is_ours(name)).cloned().collect()
}

#[test]
fn the_table_lists_every_crate() {
    let listed: BTreeSet<String> = table().into_iter().map(|room| room.name).collect();
    // Examples may depend on any crate.
    let there: BTreeSet<String> = manifests().into_keys().filter(|name| is_ours(name)).collect();
    assert_eq!(listed, there);
}

#[test]
fn the_table_points_down_only() {
    let mut below = BTreeSet::new();
    for room in table().into_iter().rev() {
        assert!(room.may_use.is_subset(&below), "{} may use {:?}, not all of it below it", room.name, room.may_use);
        below.insert(room.name);
    }
}

#[test]
fn every_crate_uses_only_what_the_table_allows() {
    let manifests = manifests();
    for Room { name, may_use, .. } in table() {
        let uses = ours(&manifests[&name].uses);
        assert!(uses.is_subset(&may_use), "{name} uses {uses:?}, the table allows {may_use:?}");
    }
}

#[test]
fn tests_use_only_what_stands_below_their_crate() {
    let manifests = manifests();
    let mut below = BTreeSet::new();
    for Room { name, .. } in table().into_iter().rev() {
        let uses = ours(&manifests[&name].tests_use);
        // A crate may name itself to enable a feature for its tests.
        assert!(uses.iter().all(|used| below.contains(used) || *used == name), "the tests of {name} use {uses:?}");
        below.insert(name);
    }
}

#[test]
fn only_one_crate_calls_the_devices_libraries() {
    let manifests = manifests();
    let rooms = table();
    let callers: Vec<&str> = rooms.iter().filter(|room| room.calls_device).map(|room| &*room.name).collect();
    assert_eq!(callers, ["tenure-device"]);
    for room in rooms.iter().filter(|room| !room.calls_device) {
        let Manifest { uses, tests_use } = &manifests[&room.name];
        let found = uses.iter().chain(tests_use).find(|name| is_device_library(name));
        assert_eq!(found, None, "{} calls the device's libraries", room.name);
    }
}

/// Returns the crates that a build of `selected` is made of, each with its features.
fn built(selected: &[&str]) -> BTreeSet<String> {
    let tree = [
        "tree",
        "--locked",
        "--target",
        "x86_64-unknown-linux-gnu",
        "--prefix",
        "none",
        "--no-dedupe",
        "--format",
        "{p} {f}",
    ];
    cargo(&[&tree[..], selected].concat()).lines().map(String::from).collect()
}

#[test]
fn the_python_package_is_built_of_the_same_crates_as_the_tests() {
    let tests = built(&["--workspace", "--edges", "normal,build,dev"]);
    let package = built(&["--package", "tenure-python", "--edges", "normal,build"]);
    let again: Vec<&String> = package.difference(&tests).collect();
    assert_eq!(again, Vec::<&String>::new(), "built twice: name in python/Cargo.toml what has the missing features");
}
