//! Conversions and copies.

use super::{Lower, Lowered, Refusal, one};

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "to_dtype" => {
            let dtype = call.dtype(0);
            let name = call.operand("input", dtype)?;
            one(name)
        }
        "to_device" | "contiguous" | "copy" | "contiguous_in_format" | "copy_in_format" => one(call.input()?.name),
        "copy_" => {
            let dtype = call.dtype(0);
            let source = call.tensor("src")?;
            let name = call.graph().cast(&source.name, source.dtype, dtype);
            let sizes = call.result_sizes(0);
            let name = call.expand(&name, &source.sizes, &sizes)?;
            one(name)
        }
        _ => Err(Refusal::Unmapped),
    }
}
