//! `tenure_operations.h`.

use tenure_tensor::operation::{Kind, Operation, Parameter, ResultKind};

use super::{operations, sentence};

/// Returns the header with a function for each operation.
pub(super) fn functions() -> String {
    let functions: String = operations().map(function).collect();
    format!(
        "\
/* A function for each of Tenure's operations, for C, made from the table of operations.
 *
 * The parameters are those of the reference of operations, and all are given. After a list comes the number of its
 * elements. tenure_int(), tenure_float(), tenure_bool(), tenure_of() and tenure_none() make a tenure_value. */
#ifndef TENURE_OPERATIONS_H
#define TENURE_OPERATIONS_H

#include \"tenure_tensor.h\"

#ifdef __cplusplus
extern \"C\" {{
#endif
{functions}
#ifdef __cplusplus
}}
#endif

#endif
"
    )
}

fn function(operation: &Operation) -> String {
    let (mut declared, passed): (Vec<String>, Vec<String>) = operation.parameters.iter().map(parameter).unzip();
    let (call, results) = match operation.result {
        ResultKind::InPlace => ("tenure_call", "NULL".to_owned()),
        ResultKind::Bool => ("tenure_call_bool", "result".to_owned()),
        ResultKind::Tensor => ("tenure_call_tensor", "result".to_owned()),
        ResultKind::Tuple(_) => ("tenure_call_tensors", "results_".to_owned()),
        ResultKind::List => ("tenure_call", "result".to_owned()),
    };
    let mut lines = String::new();
    match operation.result {
        ResultKind::InPlace => {}
        ResultKind::Bool => declared.push("bool *result".to_owned()),
        ResultKind::Tensor => declared.push("tenure_tensor **result".to_owned()),
        ResultKind::List => declared.push("tenure_value *result".to_owned()),
        ResultKind::Tuple(count) => {
            let results: Vec<String> = (0..count).map(|index| format!("result_{index}")).collect();
            lines = format!("    tenure_tensor **const results_[] = {{{}}};\n", results.join(", "));
            declared.extend(results.iter().map(|result| format!("tenure_tensor **{result}")));
        }
    }
    // C has no array of no elements.
    let count = passed.len();
    let mut arguments = "NULL";
    if count > 0 {
        arguments = "arguments_";
        lines += &format!("    const tenure_value arguments_[] = {{{}}};\n", passed.join(", "));
    }
    let (name, declared) = (operation.own_name, declared.join(", "));
    format!(
        "\n/* {} */\nstatic inline tenure_status tenure_{name}({declared}) {{\n{lines}    \
         return {call}(\"{name}\", {arguments}, {count}, {results});\n}}\n",
        sentence(operation)
    )
}

/// Returns how a parameter is declared, and its argument as a `tenure_value`.
fn parameter(Parameter { name, kind, .. }: &Parameter) -> (String, String) {
    match kind {
        Kind::Tensor | Kind::OptionalTensor => (format!("const tenure_tensor *{name}"), format!("tenure_of({name})")),
        Kind::Tensors => (
            format!("const tenure_tensor *const *{name}, size_t {name}_count"),
            format!("tenure_tensors({name}, {name}_count)"),
        ),
        Kind::Ints | Kind::Sizes => {
            (format!("const int64_t *{name}, size_t {name}_count"), format!("tenure_ints({name}, {name}_count)"))
        }
        Kind::Int | Kind::Size => (format!("int64_t {name}"), format!("tenure_int({name})")),
        Kind::Float => (format!("double {name}"), format!("tenure_float({name})")),
        Kind::Bool => (format!("bool {name}"), format!("tenure_bool({name})")),
        Kind::Text | Kind::OptionalText | Kind::Reduction => {
            (format!("const char *{name}"), format!("tenure_text({name})"))
        }
        Kind::DType => (format!("int {name}"), format!("tenure_dtype_value({name})")),
        Kind::Device => (format!("int {name}"), format!("tenure_device_value({name})")),
        Kind::Generator => (format!("const tenure_generator *{name}"), format!("tenure_generator_value({name})")),
        Kind::Value
        | Kind::Scalar
        | Kind::OptionalScalar
        | Kind::OptionalInt
        | Kind::OptionalFloat
        | Kind::OptionalDType
        | Kind::OptionalDevice => (format!("tenure_value {name}"), (*name).to_owned()),
    }
}
