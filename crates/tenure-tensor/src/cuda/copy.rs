//! Copies, and conversions between dtypes.

use super::elementwise::{self, Expression};
use super::{on_cpu, queue, transpose};
use crate::cpu;
use crate::cpu::copy::Copy;
use crate::kernel::on_cuda;
use crate::{Elementwise, Entry, Result};

pub(crate) const COPY: &[Entry<Copy>] = on_cuda!(all: copy);

/// Copies. Between equal dtypes it moves bits, else it converts values.
fn copy(iter: &Elementwise<'_>) -> Result<()> {
    macro_rules! moved {
        ($name:literal, $type:literal) => {{
            static EXPRESSION: Expression =
                Expression { name: $name, lanes: &[$type, $type], values: &["a"], fault: None };
            &EXPRESSION
        }};
    }
    let [to, from] = [0, 1].map(|operand| iter.operands()[operand].dtype);
    // The compute dtype holds every value of the target's; a source of more precision is rounded once.
    static CONVERTED: Expression = Expression { name: "convert", lanes: &["T", "T"], values: &["a"], fault: None };
    let is_here = iter.operands()[1].device.is_cpu();
    let expression = match to.size() {
        _ if from != to || is_here => &CONVERTED,
        1 => moved!("copy_1", "u8"),
        2 => moved!("copy_2", "u16"),
        4 => moved!("copy_4", "u32"),
        _ => moved!("copy_8", "u64"),
    };
    let host = move |iter: &Elementwise<'_>| on_cpu(iter.op(), &[cpu::copy::COPY], to)?(iter);
    if let Some(across) = transpose::across(iter).filter(|_| iter.numel() > 0) {
        let op = iter.op();
        return queue::submit(
            iter,
            |queue| transpose::launch(queue, iter, across),
            move |writes, reads| host(&Elementwise::new(op, &[&writes[0]], &[&reads[0]])?),
        );
    }
    elementwise::run(iter, to, expression, &[], host)
}
