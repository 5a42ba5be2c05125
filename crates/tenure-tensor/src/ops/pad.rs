//! Padding of tensors.

use crate::autograd::{Context, attach, recipe};
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::{DType, Result, Scalar, Tensor, TensorError};

/// The elements that padding adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// One number everywhere.
    Constant(Scalar),
    /// The elements inside, mirrored at the edge, which is not repeated.
    Reflect,
    /// The element at the edge, repeated.
    Replicate,
    /// The elements from the opposite end.
    Circular,
}

operations! {
    static OPERATIONS;
    Function for front_ends {
        /// Adds elements before and after each dimension: `pad` has these two numbers for each dimension, the last
        /// dimension's first. Negative numbers remove elements. `mode` is `constant`, `reflect`, `replicate` or
        /// `circular`.
        ///
        /// # Errors
        /// `pad` has an odd length or is for more dimensions than there are; more elements are removed or repeated
        /// than exist; another mode; a value with a mode that is not `constant`.
        pad(input: Tensor, pad: Ints, mode: Text = "constant", value: Option<Scalar> = None) -> Tensor =
            |input: &Tensor, padding, mode, value: Option<Scalar>| {
                let mode = match (mode, value) {
                    ("constant", value) => PadMode::Constant(value.unwrap_or(Scalar::Int(0))),
                    ("reflect", None) => PadMode::Reflect,
                    ("replicate", None) => PadMode::Replicate,
                    ("circular", None) => PadMode::Circular,
                    (mode, None) => {
                        let reason =
                            format!("mode must be constant, reflect, replicate or circular, got {mode:?}");
                        return Err(TensorError::argument("pad", reason));
                    }
                    (mode, Some(_)) => {
                        let reason = format!("mode {mode:?} takes no value: only \"constant\" does");
                        return Err(TensorError::argument("pad", reason));
                    }
                };
                input.pad(padding, mode)
            };
    }
}

impl Tensor {
    /// Adds elements before and after: `padding` has two numbers for each dimension, the last dimension's first.
    /// Negative numbers remove elements.
    ///
    /// # Errors
    /// `padding` has an odd length or is for more dimensions than there are; more elements are removed or repeated than
    /// exist.
    pub fn pad(&self, padding: &[isize], mode: PadMode) -> Result<Self> {
        let (name, value) = match mode {
            PadMode::Constant(value) => ("constant", Some(value)),
            PadMode::Reflect => ("reflect", None),
            PadMode::Replicate => ("replicate", None),
            PadMode::Circular => ("circular", None),
        };
        observed("pad", || arguments![self, padding, name, value], || self.padded_in(padding, mode))
    }

    fn padded_in(&self, padding: &[isize], mode: PadMode) -> Result<Self> {
        let (pairs, rest) = padding.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() > self.rank() {
            let reason = format!("padding {padding:?} is not two numbers for each of some of sizes {:?}", self.sizes());
            return Err(TensorError::shape("pad", reason));
        }
        let mut inner = self.clone();
        let mut widths = vec![[0; 2]; self.rank()];
        for (dim, [before, after]) in (0..self.rank()).rev().zip(pairs) {
            let length = self.sizes()[dim];
            let cut = [before, after].map(|width| if *width < 0 { width.unsigned_abs() } else { 0 });
            if cut[0].saturating_add(cut[1]) > length {
                let reason =
                    format!("padding {before} and {after} take more than dimension {dim} of size {length} has");
                return Err(TensorError::shape("pad", reason));
            }
            if cut != [0, 0] {
                inner = inner.narrow(dim as isize, cut[0], length - cut[0] - cut[1])?;
            }
            widths[dim] = [(*before).max(0) as usize, (*after).max(0) as usize];
        }
        match mode {
            PadMode::Constant(value) => inner.padded(&widths, value),
            mode => inner.continued(&widths, mode),
        }
    }

    fn padded(&self, widths: &[[usize; 2]], value: Scalar) -> Result<Self> {
        let sizes: Vec<usize> = self
            .sizes()
            .iter()
            .zip(widths)
            .map(|(size, [before, after])| before.saturating_add(*size).saturating_add(*after))
            .collect();
        value.check_fits("pad", self.dtype())?;
        let out = Self::full(&sizes, value, self.dtype(), self.device())?;
        let places: Vec<(usize, usize)> =
            widths.iter().zip(self.sizes()).map(|(width, size)| (width[0], *size)).collect();
        let inside = move |whole: &Self| {
            places.iter().enumerate().try_fold(whole.clone(), |whole, (dim, (start, size))| {
                if whole.sizes()[dim] == *size { Ok(whole) } else { whole.narrow(dim as isize, *start, *size) }
            })
        };
        inside(&out)?.copy_raw(self)?;
        recipe::note(&out, "pad", [self], [], || {
            let widths = widths.to_vec();
            move |[x], []| x.padded(&widths, value)
        });
        attach(out, "pad", &[self], |_| {
            Ok(move |context: &Context<'_>| Ok([Some(inside(&context.grad(0)?)?)].into_iter().collect()))
        })
    }

    fn continued(&self, widths: &[[usize; 2]], mode: PadMode) -> Result<Self> {
        let mut out = self.clone();
        for (dim, [before, after]) in widths.iter().enumerate().filter(|(_, width)| **width != [0, 0]) {
            let length = self.sizes()[dim] as i64;
            let most = match mode {
                PadMode::Reflect => (length - 1).max(0),
                PadMode::Circular => length,
                _ if length == 0 => 0,
                _ => i64::MAX - length,
            };
            if (*before).max(*after) as i64 > most {
                let reason = format!(
                    "{mode:?} adds at most {most} elements at either end of dimension {dim} of sizes {:?}, got {before} \
                     and {after}",
                    self.sizes()
                );
                return Err(TensorError::shape("pad", reason));
            }
            let last = length - 1;
            let places = Self::arange(-(*before as i64), length + *after as i64, 1, DType::I64, self.device())?;
            let places = match mode {
                PadMode::Reflect => places.abs()?.sub(last)?.abs()?.neg()?.add(last)?,
                PadMode::Circular => places.remainder(length)?,
                _ => places.clamp(0, last)?,
            };
            out = out.picked("pad", &[dim], dim, &places)?;
        }
        Ok(out)
    }
}
