//! Padding.

use super::{Lower, Lowered, Refusal, one};
use crate::graph::text;
use tenure_tensor::Scalar;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "pad" => call.pad(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn pad(&mut self) -> Lowered {
        let input = self.input()?;
        let mode = match self.text("mode") {
            Some("reflect") => "reflect",
            Some("replicate") => "edge",
            Some("circular") if self.all.opset < 19 => {
                return Err("mode circular needs an opset of at least 19".into());
            }
            Some("circular") => "wrap",
            _ => "constant",
        };
        // Two numbers for each dimension, the last dimension's first; ONNX wants all numbers before, then all after.
        let given = self.sizes("pad")?;
        let rank = input.rank();
        let mut pads = vec![crate::size::Size::fixed(0); 2 * rank];
        for (index, both) in given.chunks(2).enumerate() {
            pads[rank - 1 - index] = both[0];
            pads[2 * rank - 1 - index] = both[1];
        }
        let pads = self.graph().sizes(&pads)?;
        let value = self.scalar("value")?.unwrap_or(Scalar::Int(0));
        let value = self.constant(value, input.dtype);
        one(self.op("Pad", &[&input.name, &pads, &value], vec![text("mode", mode)]))
    }
}
