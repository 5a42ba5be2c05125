//! `tenure_operations.hpp` and `tenure_methods.hpp`, which `tenure.hpp` includes.

use tenure_tensor::operation::{Argument, Form, Kind, Operation, Parameter, ResultKind};
use tenure_tensor::{DType, Scalar};

use super::{operations, sentence};

/// Returns the header with a function for each operation.
pub(super) fn functions() -> String {
    let functions: String = operations().map(|operation| function(operation, false)).collect();
    format!("// A function for each of Tenure's operations, made from the table. tenure.hpp includes it.\n{functions}")
}

/// Returns the header with the operations that are methods of a tensor.
pub(super) fn methods() -> String {
    let methods = operations().filter(|operation| operation.form == Form::Method);
    let methods: String = methods.map(|operation| function(operation, true)).collect();
    format!("// The operations that are methods of a tensor, made from the table. tenure.hpp includes it.\n{methods}")
}

fn function(operation: &Operation, is_method: bool) -> String {
    let mut declared: Vec<String> = Vec::new();
    let mut passed: Vec<&str> = Vec::new();
    // C++ takes a default only where all later parameters have one.
    let last_required = operation.parameters.iter().rposition(|parameter| parameter.default.is_none());
    for (index, Parameter { name, kind, default }) in operation.parameters.iter().enumerate() {
        if index == 0 && is_method {
            passed.push("*this");
            continue;
        }
        let default = default.filter(|_| last_required.is_none_or(|last| index > last));
        let default = default.map_or(String::new(), |default| format!(" = {}", default_of(*kind, &default)));
        declared.push(format!("{}{name}{default}", type_of(*kind)));
        passed.push(name);
    }
    let call = format!("detail::call(\"{}\", {{{}}})", operation.own_name, passed.join(", "));
    let (result, body) = match operation.result {
        ResultKind::InPlace if is_method => ("const Tensor &".to_owned(), format!("{call}; return *this;")),
        ResultKind::InPlace => ("void ".to_owned(), format!("{call};")),
        ResultKind::Bool => ("bool ".to_owned(), format!("return {call}.boolean();")),
        ResultKind::Tensor => ("Tensor ".to_owned(), format!("return {call}.tensor();")),
        ResultKind::Tuple(count) => {
            (format!("std::tuple<{}> ", vec!["Tensor"; count].join(", ")), format!("return {call}.tuple<{count}>();"))
        }
        ResultKind::List => ("Tensors ".to_owned(), format!("return {call}.tensors();")),
    };
    let (prefix, suffix) = if is_method { ("", " const") } else { ("inline ", "") };
    let (sentence, name, declared) = (sentence(operation), name_of(operation), declared.join(", "));
    format!("\n/// {sentence}\n{prefix}{result}{name}({declared}){suffix} {{ {body} }}\n")
}

/// Returns the name that an operation has in C++: its own name if a call with only the parameters that it shares with
/// an earlier overload could mean either.
fn name_of(operation: &Operation) -> &'static str {
    let types = |operation: &Operation| -> Vec<&'static str> {
        operation.parameters.iter().map(|parameter| type_of(parameter.kind)).collect()
    };
    let required =
        |operation: &Operation| operation.parameters.iter().filter(|parameter| parameter.default.is_none()).count();
    let mine = types(operation);
    let mut earlier = operations().take_while(|other| !std::ptr::eq(*other, operation));
    let is_ambiguous = earlier.any(|other| {
        let others = types(other);
        let least = required(operation).max(required(other));
        let most = mine.len().min(others.len());
        other.name == operation.name && (least..=most).any(|count| mine[..count] == others[..count])
    });
    if is_ambiguous { operation.own_name } else { operation.name }
}

fn type_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Tensor | Kind::OptionalTensor => "const Tensor &",
        Kind::Tensors => "const Tensors &",
        Kind::Value | Kind::Scalar | Kind::OptionalScalar => "Value ",
        Kind::Int | Kind::Size => "int64_t ",
        Kind::OptionalInt => "std::optional<int64_t> ",
        Kind::Ints | Kind::Sizes => "const Ints &",
        Kind::Float => "double ",
        Kind::OptionalFloat => "std::optional<double> ",
        Kind::Bool => "bool ",
        Kind::Text | Kind::OptionalText | Kind::Reduction => "const char *",
        Kind::DType => "DType ",
        Kind::OptionalDType => "std::optional<DType> ",
        Kind::Device => "Device ",
        Kind::OptionalDevice => "std::optional<Device> ",
        Kind::Generator => "const Generator &",
    }
}

/// Returns a default as C++ writes it.
fn default_of(kind: Kind, default: &Argument<'_>) -> String {
    match default {
        Argument::None if kind == Kind::OptionalText => "nullptr".to_owned(),
        Argument::Scalar(Scalar::Bool(value)) => value.to_string(),
        Argument::Scalar(Scalar::Int(number)) => number.to_string(),
        Argument::Scalar(Scalar::Unsigned(number)) => format!("{number}u"),
        Argument::Scalar(Scalar::Float(number)) => format!("{number:?}"),
        Argument::Ints(numbers) => braced(numbers),
        Argument::Sizes(numbers) => braced(numbers),
        Argument::Text(text) => format!("{text:?}"),
        Argument::DType(dtype) => format!("DType::{}", dtype_name(*dtype)),
        Argument::None | Argument::Device(_) | Argument::Tensor(_) | Argument::Tensors(_) | Argument::Generator(_) => {
            "{}".to_owned()
        }
    }
}

fn braced(numbers: &[impl ToString]) -> String {
    format!("{{{}}}", numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

/// Returns the name of a dtype in C++: `float32` is `Float32`.
fn dtype_name(dtype: DType) -> String {
    let (first, rest) = dtype.name().split_at(1);
    first.to_uppercase() + rest
}
