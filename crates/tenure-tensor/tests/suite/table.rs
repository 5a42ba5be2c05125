//! Tests of the table of operations: it is complete, its calls do what the methods do, and the reference shows it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use tenure_tensor::operation::{Argument, Form, Kind, Operation, Output, Parameter, ResultKind};
use tenure_tensor::random::Generator;
use tenure_tensor::{Conv, DType, Device, Scalar, Tensor, TensorError, ops};

fn all() -> impl Iterator<Item = &'static Operation> {
    ops::OPERATIONS.iter().copied().flatten()
}

fn named(name: &str) -> Vec<&'static Operation> {
    all().filter(|operation| operation.name == name).collect()
}

/// Calls the first operation of a name.
fn call(name: &str, arguments: &[Argument<'_>]) -> Result<Output, TensorError> {
    let operation = named(name)[0];
    (operation.call)(arguments)
}

fn tensor(output: Result<Output, TensorError>) -> Tensor {
    match output {
        Ok(Output::Tensor(tensor)) => tensor,
        other => panic!("{other:?} is not a tensor"),
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn matrix() -> Tensor {
    Tensor::from_slice(&[1.0_f32, -2.0, 3.0, 4.0, 5.0, -6.0], &[2, 3]).unwrap()
}

const TRUE: Argument<'_> = Argument::Scalar(Scalar::Bool(true));

fn int(number: i64) -> Argument<'static> {
    Argument::Scalar(Scalar::Int(number))
}

fn may_follow(parameter: &Parameter) -> bool {
    parameter.default.is_some() || parameter.kind == Kind::DType
}

#[test]
fn every_operation_is_documented_and_its_parameters_have_names_of_their_own() {
    // Calls from Python give `from` by position, as PyTorch's programs do.
    const KEYWORDS: [&str; 5] = ["in", "is", "lambda", "not", "with"];
    for operation in all() {
        let name = operation.name;
        assert!(operation.doc.trim_start().starts_with(char::is_uppercase), "{name}: {:?}", operation.doc);
        assert!(operation.doc.contains("# Errors"), "{name} does not say when it fails");
        let mut names = HashSet::new();
        for parameter in operation.parameters {
            assert!(names.insert(parameter.name), "{name} has two parameters {}", parameter.name);
            assert!(!KEYWORDS.contains(&parameter.name), "{name}: Python cannot name {}", parameter.name);
        }
        let required = operation.parameters.iter().position(|parameter| parameter.default.is_some());
        // A dtype at the end is a keyword, by which front ends tell overloads apart.
        let is_sorted = required.is_none_or(|first| operation.parameters[first..].iter().all(may_follow));
        assert!(is_sorted, "{name}: a parameter without a default follows one with a default");
        let has_self = operation.parameters.first().is_some_and(|first| first.kind == Kind::Tensor);
        assert!(has_self || operation.form == Form::Function, "{name} is a method of no tensor");
        assert!(has_self || operation.result != ResultKind::InPlace, "{name} writes to no tensor");
        assert_eq!(name.ends_with('_'), operation.result == ResultKind::InPlace, "{name}");
    }
}

fn name_and_kind(parameter: &Parameter) -> (&'static str, Kind) {
    (parameter.name, parameter.kind)
}

#[test]
fn overloads_differ_in_what_they_take() {
    let mut taken: HashMap<&str, Vec<Vec<(&str, Kind)>>> = HashMap::new();
    for operation in all() {
        // An argument for every parameter, and for those that have no default.
        let most: Vec<_> = operation.parameters.iter().map(name_and_kind).collect();
        let least = operation.parameters.iter().filter(|parameter| parameter.default.is_none());
        let least: Vec<_> = least.map(name_and_kind).collect();
        let known = taken.entry(operation.name).or_default();
        let is_hidden = known.contains(&least) && known.contains(&most);
        assert!(!is_hidden, "an overload of {} hides this one", operation.name);
        known.push(least.clone());
        if most != least {
            known.push(most);
        }
    }
}

#[test]
fn a_default_is_an_argument_of_its_parameter() {
    for operation in all() {
        for Parameter { name, kind, default } in operation.parameters {
            let fits = match default {
                None => true,
                Some(Argument::None) => kind.to_string().ends_with("None"),
                Some(Argument::Scalar(Scalar::Bool(_))) => *kind == Kind::Bool,
                Some(Argument::Scalar(Scalar::Int(number))) => {
                    matches!(kind, Kind::Int | Kind::Scalar) || *kind == Kind::Size && *number >= 0
                }
                Some(Argument::Scalar(Scalar::Float(_))) => *kind == Kind::Float,
                Some(Argument::Ints(_)) => *kind == Kind::Ints,
                Some(Argument::Sizes(_)) => *kind == Kind::Sizes,
                Some(Argument::Text(_)) => matches!(kind, Kind::Text | Kind::Reduction),
                Some(Argument::DType(_)) => *kind == Kind::DType,
                Some(Argument::Device(_)) => *kind == Kind::Device,
                Some(other) => panic!("{}: {name} = {other:?}", operation.name),
            };
            assert!(fits, "{}: {name} = {default:?} is not {kind}", operation.name);
        }
    }
}

#[test]
fn a_call_computes_what_the_method_computes() {
    let x = matrix();
    let argument = Argument::Tensor(&x);
    let sum = tensor(call("sum", &[argument, Argument::Ints(&[1]), TRUE]));
    assert_eq!((sum.sizes(), numbers(&sum)), (&[2, 1][..], vec![2.0, 3.0]));
    assert_eq!(numbers(&tensor(call("mul", &[argument, int(2)]))), numbers(&x.mul(2).unwrap()));
    assert_eq!(numbers(&tensor(call("mul", &[argument, argument]))), numbers(&x.square().unwrap()));
    assert!(matches!(call("equal", &[argument, argument]), Ok(Output::Bool(true))));

    let Ok(Output::Tensors(moments)) = call("var_mean", &[argument, Argument::Ints(&[]), float(1.0), TRUE]) else {
        panic!("two tensors");
    };
    let (variance, mean) = x.var_mean(&[], 1.0, true).unwrap();
    assert_eq!(moments.iter().flat_map(numbers).collect::<Vec<_>>(), [numbers(&variance), numbers(&mean)].concat());

    let Ok(Output::Tensors(rows)) = call("unbind", &[argument, int(0)]) else { panic!("a list") };
    assert_eq!(rows.len(), 2);
    let both = [&rows[1], &rows[0]];
    let joined = tensor(call("cat", &[Argument::Tensors(&both), int(-1)]));
    assert_eq!(numbers(&joined), [4.0, 5.0, -6.0, 1.0, -2.0, 3.0]);
}

fn float(number: f64) -> Argument<'static> {
    Argument::Scalar(Scalar::Float(number))
}

#[test]
fn a_call_in_place_writes_to_its_first_argument() {
    let x = matrix();
    assert!(matches!(call("relu_", &[Argument::Tensor(&x)]), Ok(Output::InPlace)));
    assert_eq!(numbers(&x), [1.0, 0.0, 3.0, 4.0, 5.0, 0.0]);
    assert_eq!(x.version(), 1);
}

#[test]
fn options_that_rust_takes_as_a_structure_are_parameters() {
    let image = Tensor::arange(0, 32, 1, DType::F32, Device::CPU).unwrap().view(&[1, 2, 4, 4]).unwrap();
    let weight = Tensor::ones(&[2, 1, 3, 3], DType::F32, Device::CPU).unwrap();
    let given = [
        Argument::Tensor(&image),
        Argument::Tensor(&weight),
        Argument::None,
        Argument::Sizes(&[2]),
        Argument::Sizes(&[1]),
        Argument::Sizes(&[1]),
        int(2),
    ];
    let options = Conv { stride: &[2], padding: &[1], dilation: &[1], groups: 2 };
    assert_eq!(numbers(&tensor(call("conv2d", &given))), numbers(&image.conv(&weight, None, &options).unwrap()));
    let error = call("conv1d", &given).unwrap_err().to_string();
    assert_eq!(error, "conv1d: the weight must have 3 dimensions, got sizes [2, 1, 3, 3]");
}

#[test]
fn random_numbers_come_from_the_generator_that_is_given() {
    let generator = Generator::new(7);
    let draw = |generator| {
        let sizes = Argument::Sizes(&[5]);
        let dtype = Argument::DType(DType::F32);
        numbers(&tensor(call("rand", &[sizes, dtype, Argument::Device(Device::CPU), generator])))
    };
    let drawn = draw(Argument::Generator(&generator));
    let again = Tensor::rand(&[5], DType::F32, Device::CPU, &Generator::new(7)).unwrap();
    assert_eq!(drawn, numbers(&again));
    assert_ne!(drawn, draw(Argument::None), "the default generator has another seed");
}

fn refused(name: &str, arguments: &[Argument<'_>]) -> String {
    call(name, arguments).unwrap_err().to_string()
}

#[test]
fn an_argument_of_another_type_is_refused_by_name() {
    let x = matrix();
    let given = Argument::Tensor(&x);
    let sum = refused("sum", &[given, int(1), TRUE]);
    assert_eq!(sum, "sum: dim must be a list of integers, got 1");
    let weight = refused("linear", &[given, int(1), Argument::None]);
    assert_eq!(weight, "linear: weight must be a tensor, got 1");
    let reduction = refused("mse_loss", &[given, given, Argument::Text("avg")]);
    assert_eq!(reduction, "mse_loss: reduction must be \"none\", \"mean\" or \"sum\", got \"avg\"");
    let negative = refused("chunk", &[given, int(-1), int(0)]);
    assert_eq!(negative, "chunk: chunks must be an integer that is not negative, got -1");
    assert_eq!(refused("sum", &[given]), "sum: takes 3 arguments, got 1");
}

#[test]
fn every_operation_is_in_the_table() {
    // Front ends make the structures that these take from several arguments, or they are short forms of others.
    const ELSEWHERE: [&str; 22] = [
        "adaptive_avg_pool",
        "arange",
        "attention",
        "avg_pool",
        "batch_norm",
        "batch_norm_relu",
        "cat",
        "contiguous_in",
        "conv",
        "conv_transpose",
        "cross_entropy",
        "einsum",
        "index",
        "index_put",
        "index_put_",
        "max_pool",
        "mean_all",
        "meshgrid",
        "pad",
        "stack",
        "sum_all",
        "where_",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let mut undeclared: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        let methods = source.lines().filter_map(|line| line.strip_prefix("    pub fn "));
        let names = methods.map(|line| line.split(['(', '<']).next().unwrap().to_owned());
        undeclared.extend(names.filter(|name| !ELSEWHERE.contains(&&**name)));
    }
    assert_eq!(undeclared, Vec::<String>::new(), "declare them with operations!");
}

#[test]
fn the_reference_lists_every_operation() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/operations.md"));
    let page = reference();
    if env::var_os("TENURE_UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reference/operations.md is not of this table: `just operations` writes it again");
}

/// Returns the page of the reference: operations by name, with the first sentence of their documentation.
fn reference() -> String {
    let mut rows: Vec<String> = all().map(row).collect();
    rows.sort();
    let count = rows.len();
    let head = "\
# Operations

The operations on tensors, with the names and defaults that front ends give their parameters. Where Rust's method has
another name or takes a structure of options, its documentation says so. Tests compare this page with the table of
operations in `tenure-tensor`; `just operations` writes it.

";
    format!("{head}{count} operations:\n\n| operation | result |\n| --- | --- |\n{}", rows.concat())
}

fn row(operation: &Operation) -> String {
    let parameters: Vec<String> = operation.parameters.iter().map(written).collect();
    let sentence =
        operation.doc.split("\n\n").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = sentence.split_inclusive(". ").next().unwrap_or_default();
    let sentence = without_links(sentence.trim().trim_end_matches('.'));
    format!("| `{}({})` | {sentence} |\n", operation.name, parameters.join(", "))
}

/// Returns a parameter with its default, as Python writes it.
fn written(parameter: &Parameter) -> String {
    let Parameter { name, default, .. } = parameter;
    match default {
        None => (*name).to_owned(),
        Some(Argument::Scalar(Scalar::Bool(true))) => format!("{name}=True"),
        Some(Argument::Scalar(Scalar::Bool(false))) => format!("{name}=False"),
        Some(Argument::Scalar(Scalar::Float(number))) => format!("{name}={number:?}"),
        Some(default) => format!("{name}={default}"),
    }
}

/// Returns Markdown without its links to items of Rust: [`sum`](Self::sum) becomes `sum`. Other brackets stay.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((shown, after)) = link.split_once(']') else { break };
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        match target {
            Some((_, after)) => {
                plain.push_str(shown);
                rest = after;
            }
            None if shown.starts_with('`') && shown.ends_with('`') => {
                plain.push_str(shown);
                rest = after;
            }
            None => {
                plain.push('[');
                rest = link;
            }
        }
    }
    // A bar would end the cell of the table.
    (plain + rest).replace("|x|", "abs(x)")
}
