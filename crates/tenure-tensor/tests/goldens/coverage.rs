//! Completeness of the goldens: every public operation has some, in every dtype and layout that it supports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{Cases, Family};

/// Operations that are not compared with PyTorch, and why.
const APART: &[(&[&str], &str)] = &[
    (&["rand", "randn", "rand_like", "randn_like", "randint", "randperm"], "generators differ: tests/random.rs"),
    (&["bernoulli", "bernoulli_", "uniform_", "normal_", "dropout"], "generators differ: tests/random.rs"),
    (&["empty", "empty_like", "empty_strided"], "has no values: tests/create.rs"),
    (&["from_slice", "from_vec", "scalar"], "takes values from Rust: tests/create.rs"),
    (&["to_device"], "there is one device"),
    (&["allclose", "equal"], "makes no tensor: tests/elementwise.rs"),
];

/// Operations that always need an element.
const NEVER_EMPTY: &[&str] = &["max_all", "min_all", "as_strided"];

/// Operations on vectors, matrices or images, or along a dimension that must exist.
const NEVER_SCALAR: &[&[&str]] = &[
    &["dot", "outer", "mv", "matmul", "bmm", "linear", "conv", "conv_transpose", "attention", "mt", "diagonal"],
    &["max_pool", "avg_pool", "adaptive_avg_pool", "contiguous_in", "cross_entropy", "nll_loss", "tril", "triu"],
    &["batch_norm", "batch_norm_relu", "group_norm", "layer_norm", "rms_norm", "rotary"],
    &["repeat_interleave", "roll", "take_along_dim"],
    &["cat", "split", "split_sizes", "chunk", "unbind", "select", "narrow", "slice", "unflatten", "as_strided"],
    &["index_put", "index_put_"],
    // PyTorch treats a scalar as a vector of one element here.
    &["movedim", "unfold", "index_select", "index_fill", "index_add", "index_add_", "index_copy"],
];

/// Operations whose results have no gradient.
const NEVER_DIFFERENTIABLE: &[&str] = &["gt", "lt"];

/// The properties that the samples of an operation cover.
#[derive(Default)]
struct Shown {
    takes_tensors: bool,
    dtypes: BTreeSet<String>,
    variants: BTreeSet<String>,
    is_differentiable: bool,
    is_checked: bool,
    is_checked_twice: bool,
}

#[test]
fn every_operation_has_goldens() {
    let shown = shown();
    let mut missing = Vec::new();
    for operation in operations().difference(&apart()) {
        let Some(shown) = shown.get(operation) else {
            missing.push(format!("{operation}: no golden calls it"));
            continue;
        };
        let mut lacks = |what: &str| missing.push(format!("{operation}: no golden {what}"));
        if shown.is_differentiable && !NEVER_DIFFERENTIABLE.contains(&&operation[..]) {
            let dtypes = ["f32", "bf16", "f16", "f64"];
            dtypes
                .iter()
                .filter(|dtype| !shown.dtypes.contains(**dtype))
                .for_each(|dtype| lacks(&format!("in {dtype}")));
            if !shown.is_checked {
                lacks("whose gradients are checked by differences");
            } else if !shown.is_checked_twice {
                lacks("whose second derivatives are checked by differences");
            }
        }
        for variant in ["transposed", "sliced", "expanded", "zero-size", "0-d"] {
            let applies = match variant {
                _ if !shown.takes_tensors => false,
                "zero-size" => !NEVER_EMPTY.contains(&&operation[..]),
                "0-d" => !NEVER_SCALAR.iter().any(|names| names.contains(&&operation[..])),
                _ => true,
            };
            if applies && !shown.variants.contains(variant) {
                lacks(&format!("that is {variant}"));
            }
        }
    }
    assert!(missing.is_empty(), "{} gaps:\n{}", missing.len(), missing.join("\n"));
}

pub(crate) fn apart() -> BTreeSet<String> {
    APART.iter().flat_map(|(names, _)| *names).map(|name| (*name).to_owned()).collect()
}

/// Returns the public functions of `src/ops`, and those that create tensors.
pub(crate) fn operations() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files: Vec<PathBuf> =
        fs::read_dir(source.join("ops")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.extend(["create", "ranges"].map(|name| source.join(format!("tensor/{name}.rs"))));
    let lines =
        files.iter().flat_map(|file| fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>());
    lines.flat_map(|line| declared(line.trim())).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_of_word)
}

/// Returns the operations that a line of source declares: `pub fn NAME`, or in a macro's list `NAME = kernels::KERNEL`
/// or `NAME / NAME_ = kernels::KERNEL`.
fn declared(line: &str) -> Vec<String> {
    if let Some(rest) = line.strip_prefix("pub fn ") {
        let name: String = rest.chars().take_while(|letter| is_of_word(*letter)).collect();
        return if name.is_empty() { vec![] } else { vec![name] };
    }
    let Some((names, kernel)) = line.split_once(" = ") else { return vec![] };
    let path = kernel.split([',', ';']).next().unwrap_or_default();
    let is_kernel = path.rsplit_once("::").is_some_and(|(_, name)| is_name(name) && name == name.to_uppercase());
    let names: Vec<String> = names.split(" / ").map(str::to_owned).collect();
    if is_kernel && names.iter().all(|name| is_name(name)) { names } else { vec![] }
}

/// Collects for each operation the properties of the samples of all cases that call it.
fn shown() -> BTreeMap<String, Shown> {
    let mut found: BTreeMap<String, Shown> = BTreeMap::new();
    for cases in crate::FAMILIES {
        let calls = calls(cases);
        for sample in &Family::open(cases.family).samples {
            for operation in &calls[&sample.case[..]] {
                let shown = found.entry(operation.clone()).or_default();
                shown.takes_tensors |= !sample.inputs.is_empty();
                shown.dtypes.insert(sample.dtype.clone());
                shown.variants.insert(sample.variant.clone());
                shown.is_differentiable |= sample.is_differentiable();
                shown.is_checked |= sample.gradcheck;
                shown.is_checked_twice |= sample.gradcheck && sample.second;
            }
        }
    }
    found
}

/// Finds the operations that each case calls in its source: in its closure, and in functions of the file that the
/// closure names.
pub(crate) fn calls(family: &Cases) -> BTreeMap<&'static str, BTreeSet<String>> {
    let source = family.source;
    let list = &source[source.find(&format!("const {}:", family.list)).unwrap()..];
    let helpers: Vec<(String, &str)> = source
        .split("\nfn ")
        .skip(1)
        .map(|text| {
            (text.chars().take_while(|letter| is_of_word(*letter)).collect(), text.split("\n}\n").next().unwrap())
        })
        .collect();
    family
        .cases
        .iter()
        .map(|(name, _)| {
            let start = list.find(&format!("(\"{name}\", ")).unwrap() + name.len() + 4;
            let closure = list[start..].split("\n    (\"").next().unwrap().split("\n];").next().unwrap();
            let mut names = words(closure);
            for _ in 0..2 {
                let used = helpers.iter().filter(|(helper, _)| names.contains(helper));
                names.extend(used.flat_map(|(_, body)| words(body)).collect::<Vec<_>>());
            }
            (*name, names)
        })
        .collect()
}

fn words(source: &str) -> BTreeSet<String> {
    source.split(|letter| !is_of_word(letter)).map(str::to_owned).collect()
}

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}
