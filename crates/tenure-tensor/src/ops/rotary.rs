//! Rotary position embedding.

use super::entered;
use super::pointwise::output;
use super::reduce::floating;
use crate::autograd::{Context, attach, recipe};
use crate::cpu::activation::Rotate;
use crate::operation::operations;
use crate::{Elementwise, Kernel, Result, Tensor, TensorError, cpu, cuda};

static ROTATE: Kernel<Rotate> = Kernel::new("rotary", &[cpu::activation::ROTATE, cuda::activation::ROTATE]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Applies the rotary position embedding (Su et al., 2021) in Llama's layout: rotates each pair of an element
        /// in the first half of the last dimension and its partner in the second half by an angle. `cos` and `sin` of
        /// the angles broadcast to the sizes of a half.
        ///
        /// # Errors
        /// An integer dtype, a last dimension of odd size, angles of other sizes.
        rotary(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor;
    }
}

fn rotary(input: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    input.rotated(cos, sin, false)
}

impl Tensor {
    /// Rotates, in the opposite direction if `back`.
    fn rotated(&self, cos: &Self, sin: &Self, back: bool) -> Result<Self> {
        let op = ROTATE.name();
        let _op = entered(op);
        floating(op, self)?;
        let Some(half) = self.sizes().last().filter(|size| size.is_multiple_of(2)).map(|size| size / 2) else {
            let reason = format!("a last dimension of even size is needed, got sizes {:?}", self.sizes());
            return Err(TensorError::shape(op, reason));
        };
        let halves = |tensor: &Self| -> Result<[Self; 2]> {
            let tensor = tensor.detach();
            Ok([tensor.narrow(-1, 0, half)?, tensor.narrow(-1, half, half)?])
        };
        let out = output(self.sizes(), self.dtype(), &[self])?;
        let ([first, second], [x, y]) = (halves(&out)?, halves(self)?);
        let kernel = ROTATE.find(self.device().kind(), self.dtype())?;
        let sign = if back { 1.0 } else { -1.0 };
        kernel(&Elementwise::new(op, &[&first, &second], &[&x, &y, cos, sin])?, sign)?;
        recipe::note(&out, op, [self, cos, sin], [], || move |[x, cos, sin], []| x.rotated(cos, sin, back));
        attach(out, op, &[self, cos, sin], |saver| {
            let turns = saver.needs(1) || saver.needs(2);
            let x = saver.save_if(turns, self)?;
            let cos = saver.save(cos)?;
            let sin = saver.save(sin)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let cos = context.unpack(cos)?;
                let sin = context.unpack(sin)?;
                let along = |across: bool, like: &Self| -> Result<Self> {
                    let x = context.unpack(x)?;
                    let y = x.narrow(-1, half, half)?;
                    let x = x.narrow(-1, 0, half)?;
                    let to_x = grad.narrow(-1, 0, half)?;
                    let to_y = grad.narrow(-1, half, half)?;
                    let products = match across {
                        false => to_x.mul(&x)?.add(&to_y.mul(&y)?)?,
                        true => to_y.mul(&x)?.sub(&to_x.mul(&y)?)?.mul(-sign)?,
                    };
                    products.sum_to(like.sizes())
                };
                let to_input = context.give(0, || grad.rotated(&cos, &sin, !back))?;
                let to_cos = context.give(1, || along(false, &cos))?;
                Ok([to_input, to_cos, context.give(2, || along(true, &sin))?].into_iter().collect())
            })
        })
    }
}
