//! Reductions over dimensions.

use std::marker::PhantomData;

use super::lines::larger;
use super::math::Math;
use super::reduction::{ElementReduction, reduce};
use crate::element::Real;
use crate::kernel::on_cpu;
use crate::{DType, DeviceKind, Element, Entry, Number, Result, Scalar, Tensor};

/// A kernel that reduces the input to the output, which has size 1 where a dimension is reduced.
pub(crate) type Reduce = fn(&Tensor, &Tensor) -> Result<()>;
/// A kernel that reduces to the largest elements (`true`) or to the smallest.
pub(crate) type Extreme = fn(&Tensor, &Tensor, bool) -> Result<()>;
/// A kernel that reduces with the help of a third tensor of the output's sizes.
pub(crate) type ReduceWith = fn(&Tensor, &Tensor, &Tensor) -> Result<()>;
/// A kernel that writes means and sums of squared deviations of the input, in the dtype to compute in.
pub(crate) type Moments = fn(&Tensor, &Tensor, &Tensor) -> Result<()>;

/// Sums. The sum of `bool` counts true elements; other integers are converted first, here and below.
pub(crate) const SUM: [&[Entry<Reduce>]; 2] = [
    on_cpu!(lanes of floats: sum::<T>),
    &[(DeviceKind::Cpu, DType::Bool, sum_integers), (DeviceKind::Cpu, DType::I64, sum_integers)],
];
/// Means.
pub(crate) const MEAN: &[Entry<Reduce>] = on_cpu!(lanes of floats: mean::<T>);
/// Products.
pub(crate) const PROD: [&[Entry<Reduce>]; 2] =
    [on_cpu!(lanes of floats: prod::<T>), &[(DeviceKind::Cpu, DType::I64, prod_integers)]];
/// Sums of absolute values.
pub(crate) const NORM_1: &[Entry<Reduce>] = on_cpu!(lanes of floats: norm_1::<T>);
/// Square roots of sums of squares.
pub(crate) const NORM_2: &[Entry<Reduce>] = on_cpu!(lanes of floats: norm_2::<T>);
/// The largest or smallest elements; NaN wins.
pub(crate) const EXTREME: [&[Entry<Extreme>]; 2] = [
    on_cpu!(lanes of floats: extreme::<T>),
    &[(DeviceKind::Cpu, DType::Bool, extreme_integers), (DeviceKind::Cpu, DType::I64, extreme_integers)],
];
/// The first position of the given largest or smallest element, as `int64`.
pub(crate) const POSITION: [&[Entry<ReduceWith>]; 2] =
    [on_cpu!(lanes of floats: position::<T>), &[(DeviceKind::Cpu, DType::I64, position::<i64>)]];
/// Logarithms of sums of exponentials. The largest elements are given.
pub(crate) const LOGSUMEXP: &[Entry<ReduceWith>] = on_cpu!(lanes of floats: logsumexp::<T>);
/// See [`Moments`].
pub(crate) const MOMENTS: &[Entry<Moments>] = on_cpu!(lanes of floats: moments::<T>);

fn sum<T: Real>(out: &Tensor, input: &Tensor) -> Result<()> {
    sum_over("sum", out, input, T::ONE)
}

fn sum_integers(out: &Tensor, input: &Tensor) -> Result<()> {
    map_reduce("sum", out, input, 0, |value: i64| value, i64::wrapping_add, |sum| sum)
}

fn mean<T: Real>(out: &Tensor, input: &Tensor) -> Result<()> {
    sum_over::<T>("mean", out, input, count(out, input))
}

/// Writes sums, divided by a number.
fn sum_over<T: Real>(op: &'static str, out: &Tensor, input: &Tensor, divisor: T) -> Result<()> {
    map_reduce(op, out, input, T::ZERO, |value: T| value, Number::plus, |sum| sum / divisor)
}

fn prod<T: Real>(out: &Tensor, input: &Tensor) -> Result<()> {
    map_reduce("prod", out, input, T::ONE, |value: T| value, Number::times, |product| product)
}

fn prod_integers(out: &Tensor, input: &Tensor) -> Result<()> {
    map_reduce("prod", out, input, 1, |value: i64| value, i64::wrapping_mul, |product| product)
}

fn norm_1<T: Math>(out: &Tensor, input: &Tensor) -> Result<()> {
    map_reduce("norm", out, input, T::ZERO, Math::abs, Number::plus, |sum: T| sum)
}

fn norm_2<T: Math>(out: &Tensor, input: &Tensor) -> Result<()> {
    map_reduce("norm", out, input, T::ZERO, |value: T| value * value, Number::plus, Math::sqrt)
}

fn extreme<T: Real>(out: &Tensor, input: &Tensor, largest: bool) -> Result<()> {
    // The smallest element is the largest with the other sign.
    let sign = if largest { T::ONE } else { -T::ONE };
    let identity = T::from_scalar(Scalar::Float(f64::NEG_INFINITY));
    map_reduce("amax", out, input, identity, |value: T| value * sign, larger, |value| value * sign)
}

fn extreme_integers(out: &Tensor, input: &Tensor, largest: bool) -> Result<()> {
    // Inverting every bit reverses the order.
    let flip = if largest { 0 } else { -1 };
    map_reduce("amax", out, input, i64::MIN, |value: i64| value ^ flip, Ord::max, |value| value ^ flip)
}

fn position<T: Element>(out: &Tensor, input: &Tensor, given: &Tensor) -> Result<()> {
    reduce("argmax", &FirstPosition::<T>(PhantomData), [out], [input], Some(given))
}

fn logsumexp<T: Math>(out: &Tensor, input: &Tensor, largest: &Tensor) -> Result<()> {
    reduce("logsumexp", &LogSumExp::<T>(PhantomData), [out], [input], Some(largest))
}

fn moments<T: Real>(mean: &Tensor, squares: &Tensor, input: &Tensor) -> Result<()> {
    sum_over::<T>("mean", mean, input, count(mean, input))?;
    reduce("var", &SquaredDeviations::<T>(PhantomData), [squares], [input], Some(mean))
}

/// Returns the number of elements that make one output.
fn count<R: Number>(out: &Tensor, input: &Tensor) -> R {
    let reduced = out.sizes().iter().zip(input.sizes()).filter(|(to, from)| to != from);
    R::from_scalar(Scalar::Int(reduced.map(|(_, from)| *from).product::<usize>() as i64))
}

/// Reduces one input to one output: merges the values that `map` gives for its elements.
fn map_reduce<T: Element, A: Copy + Send + Sync, O: Element>(
    op: &'static str,
    out: &Tensor,
    input: &Tensor,
    identity: A,
    map: impl Fn(T) -> A + Sync,
    merge: impl Fn(A, A) -> A + Sync,
    finish: impl Fn(A) -> O + Sync,
) -> Result<()> {
    reduce(op, &MapReduce { identity, map, merge, finish, types: PhantomData }, [out], [input], None)
}

/// The reduction of [`map_reduce`].
struct MapReduce<T, A, O, M, G, F> {
    identity: A,
    map: M,
    merge: G,
    finish: F,
    types: PhantomData<fn(T) -> O>,
}

impl<T, A, O, M, G, F> ElementReduction<1, 1> for MapReduce<T, A, O, M, G, F>
where
    T: Element,
    A: Copy + Send + Sync,
    O: Element,
    M: Fn(T) -> A + Sync,
    G: Fn(A, A) -> A + Sync,
    F: Fn(A) -> O + Sync,
{
    type Input = T;
    type Accumulator = A;
    type Output = O;
    type Parameter = bool;

    #[inline(always)]
    fn identity(&self) -> [A; 1] {
        [self.identity]
    }

    #[inline(always)]
    fn accumulate(&self, [sum]: [A; 1], [value]: [T; 1], _: bool, _: usize) -> [A; 1] {
        [(self.merge)(sum, (self.map)(value))]
    }

    #[inline(always)]
    fn merge(&self, [left]: [A; 1], [right]: [A; 1]) -> [A; 1] {
        [(self.merge)(left, right)]
    }

    #[inline(always)]
    fn finish(&self, [sum]: [A; 1], _: bool) -> [O; 1] {
        [(self.finish)(sum)]
    }
}

/// The position of the first element that equals the parameter.
struct FirstPosition<T>(PhantomData<fn(T)>);

impl<T: Element> ElementReduction<1, 1> for FirstPosition<T> {
    type Input = T;
    type Accumulator = i64;
    type Output = i64;
    type Parameter = T;

    #[inline(always)]
    fn identity(&self) -> [i64; 1] {
        [i64::MAX]
    }

    #[inline(always)]
    #[expect(clippy::eq_op, reason = "NaN does not equal itself, and is there only if it is given")]
    fn accumulate(&self, [first]: [i64; 1], [value]: [T; 1], given: T, at: usize) -> [i64; 1] {
        let at = if value == given || value != value { at as i64 } else { i64::MAX };
        [first.min(at)]
    }

    #[inline(always)]
    fn merge(&self, [left]: [i64; 1], [right]: [i64; 1]) -> [i64; 1] {
        [left.min(right)]
    }

    #[inline(always)]
    fn finish(&self, first: [i64; 1], _: T) -> [i64; 1] {
        first
    }
}

/// The logarithm of the sum of exponentials. The parameter is the largest element.
struct LogSumExp<T>(PhantomData<fn(T)>);

impl<T: Math> ElementReduction<1, 1> for LogSumExp<T> {
    type Input = T;
    type Accumulator = T;
    type Output = T;
    type Parameter = T;

    #[inline(always)]
    fn identity(&self) -> [T; 1] {
        [T::ZERO]
    }

    #[inline(always)]
    fn accumulate(&self, [sum]: [T; 1], [value]: [T; 1], largest: T, _: usize) -> [T; 1] {
        [sum + (value - finite(largest)).exp()]
    }

    #[inline(always)]
    fn merge(&self, [left]: [T; 1], [right]: [T; 1]) -> [T; 1] {
        [left + right]
    }

    #[inline(always)]
    fn finish(&self, [sum]: [T; 1], largest: T) -> [T; 1] {
        [sum.log() + finite(largest)]
    }
}

/// Returns the number to subtract before taking exponentials: `largest`, or 0 if that is infinite, as infinity minus
/// infinity is NaN.
#[inline(always)]
fn finite<T: Math>(largest: T) -> T {
    if largest.abs() == T::of(f64::INFINITY) { T::ZERO } else { largest }
}

/// The sum of squared deviations from the parameter, the mean.
struct SquaredDeviations<T>(PhantomData<fn(T)>);

impl<T: Real> ElementReduction<1, 1> for SquaredDeviations<T> {
    type Input = T;
    type Accumulator = T;
    type Output = T;
    type Parameter = T;

    #[inline(always)]
    fn identity(&self) -> [T; 1] {
        [T::ZERO]
    }

    #[inline(always)]
    fn accumulate(&self, [sum]: [T; 1], [value]: [T; 1], mean: T, _: usize) -> [T; 1] {
        let deviation = value - mean;
        [sum + deviation * deviation]
    }

    #[inline(always)]
    fn merge(&self, [left]: [T; 1], [right]: [T; 1]) -> [T; 1] {
        [left + right]
    }

    #[inline(always)]
    fn finish(&self, sum: [T; 1], _: T) -> [T; 1] {
        sum
    }
}
