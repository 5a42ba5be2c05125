//! Mathematical functions. The `f32` versions have no branches, so that loops over them are vectorised; they are within
//! two units in the last place of the true value. The `f64` versions are the system's, or musl's.
//!
//! The polynomials are minimax fits on the reduced ranges.

use super::gamma;
use crate::element::Real;

/// Evaluates c₀ + c₁·x + c₂·x² + ... without a loop, which might not be unrolled.
macro_rules! polynomial {
    ($x:expr, [$last:expr $(,)?]) => { $last };
    ($x:expr, [$first:expr, $($rest:expr),+ $(,)?]) => { polynomial!($x, [$($rest),+]).mul_add($x, $first) };
}

/// The mathematical functions of a floating-point type, for kernels.
pub(crate) trait Math: Real {
    /// Converts from an `f64`, to the nearest value.
    fn of(value: f64) -> Self;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    /// Rounds to the nearest integer, ties to even.
    fn round(self) -> Self;
    fn exp(self) -> Self;
    fn expm1(self) -> Self;
    fn log(self) -> Self;
    fn log1p(self) -> Self;
    fn log2(self) -> Self;
    fn log10(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn erfc(self) -> Self;
    fn erfinv(self) -> Self;
    fn lgamma(self) -> Self;
    fn digamma(self) -> Self;
    /// Computes the derivative of `digamma` of an order of at least 1.
    fn polygamma(self, order: Self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    fn atan2(self, x: Self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn asinh(self) -> Self;
    fn acosh(self) -> Self;
    fn atanh(self) -> Self;

    /// Returns whether the value is NaN.
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }

    /// Returns the logistic function.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

/// Defines methods that call the type's own.
macro_rules! own {
    ($type:ty: $($name:ident)*) => {$(
        #[inline(always)]
        fn $name(self) -> Self {
            <$type>::$name(self)
        }
    )*};
}

impl Math for f64 {
    own!(f64: sqrt abs floor ceil trunc exp log2 log10 tanh sin cos tan asin acos atan sinh cosh asinh acosh atanh);

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn round(self) -> Self {
        self.round_ties_even()
    }

    #[inline(always)]
    fn expm1(self) -> Self {
        self.exp_m1()
    }

    #[inline(always)]
    fn log(self) -> Self {
        self.ln()
    }

    #[inline(always)]
    fn log1p(self) -> Self {
        self.ln_1p()
    }

    #[inline(always)]
    fn erf(self) -> Self {
        libm::erf(self)
    }

    #[inline(always)]
    fn erfc(self) -> Self {
        libm::erfc(self)
    }

    fn erfinv(self) -> Self {
        inverse_erf(self)
    }

    fn lgamma(self) -> Self {
        libm::lgamma(self)
    }

    fn digamma(self) -> Self {
        gamma::digamma(self)
    }

    fn polygamma(self, order: Self) -> Self {
        gamma::polygamma(order, self)
    }

    #[inline(always)]
    fn atan2(self, x: Self) -> Self {
        f64::atan2(self, x)
    }
}

impl Math for f32 {
    own!(f32: sqrt abs floor ceil trunc asin acos atan sinh cosh asinh acosh atanh);

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn round(self) -> Self {
        self.round_ties_even()
    }

    #[inline(always)]
    fn exp(self) -> Self {
        // Beyond these limits the result is infinite or 0.
        let x = self.clamp(-104.0, 89.0);
        let (n, r) = reduce(x);
        // The scaling takes two steps, as 2ⁿ itself may be out of range.
        let half = n >> 1;
        expm1_reduced(r).mul_add(power_of_two(half), power_of_two(half)) * power_of_two(n - half)
    }

    #[inline(always)]
    fn expm1(self) -> Self {
        let x = self.clamp(-20.0, 89.0);
        let (n, r) = reduce(x);
        // The half is computed first, as 2ⁿ itself may be out of range.
        let half = power_of_two(n - 1);
        2.0 * expm1_reduced(r).mul_add(half, half - 0.5)
    }

    #[inline(always)]
    fn log(self) -> Self {
        let (n, log) = log_parts(self);
        special_log(self, n.mul_add(LN_2_HIGH, n.mul_add(LN_2_LOW, log)))
    }

    #[inline(always)]
    fn log2(self) -> Self {
        let (n, log) = log_parts(self);
        special_log(self, log.mul_add(std::f32::consts::LOG2_E, n))
    }

    #[inline(always)]
    fn log10(self) -> Self {
        let (n, log) = log_parts(self);
        special_log(self, n.mul_add(std::f32::consts::LOG10_2, log * std::f32::consts::LOG10_E))
    }

    #[inline(always)]
    fn log1p(self) -> Self {
        let u = 1.0 + self;
        // The part of the argument that rounding took from u, relative to u.
        let lost = (self - (u - 1.0)) / u;
        Math::log(u) + if lost.abs() < 1.0 { lost } else { 0.0 }
    }

    #[inline(always)]
    fn tanh(self) -> Self {
        let e = (2.0 * self.abs().min(10.0)).expm1();
        let tanh = (e / (e + 2.0)).copysign(self);
        if self.is_nan() { self } else { tanh }
    }

    #[inline(always)]
    fn erf(self) -> Self {
        let t = self.abs().min(4.0);
        let z = t * t;
        // erf(t) / t - 1
        let slope = polynomial!(
            z,
            [0.128_379_12, -0.376_123_26, 0.112_801_8, -0.026_711_294, 0.004_917_532, -0.000_563_134_5_f32]
        );
        let small = t.mul_add(slope, t);
        // -log(1 - erf)
        let exponent = polynomial!(
            t,
            [
                0.000_256_284_8,
                1.127_426_7,
                0.637_598_8,
                0.103_567_98,
                -0.022_052_543,
                0.002_999_683,
                -0.000_191_519_21_f32,
            ]
        );
        let (n, r) = reduce(-exponent);
        let scale = power_of_two(n);
        let large = 1.0 - expm1_reduced(r).mul_add(scale, scale);
        let erf = if t < 1.0 { small } else { large }.copysign(self);
        if self.is_nan() { self } else { erf }
    }

    fn erfc(self) -> Self {
        libm::erfcf(self)
    }

    fn erfinv(self) -> Self {
        inverse_erf(f64::from(self)) as f32
    }

    fn lgamma(self) -> Self {
        libm::lgamma(f64::from(self)) as f32
    }

    fn digamma(self) -> Self {
        gamma::digamma(f64::from(self)) as f32
    }

    fn polygamma(self, order: Self) -> Self {
        gamma::polygamma(f64::from(order), f64::from(self)) as f32
    }

    /// Computes the sine, for arguments up to [`REDUCIBLE`].
    #[inline(always)]
    fn sin(self) -> Self {
        let (quadrant, sin, cos) = sin_cos(self);
        let value = if quadrant & 1 == 0 { sin } else { cos };
        (if quadrant & 2 == 0 { value } else { -value }) as f32
    }

    /// Computes the cosine, for arguments up to [`REDUCIBLE`].
    #[inline(always)]
    fn cos(self) -> Self {
        let (quadrant, sin, cos) = sin_cos(self);
        let value = if quadrant & 1 == 0 { cos } else { -sin };
        (if quadrant & 2 == 0 { value } else { -value }) as f32
    }

    /// Computes the tangent, for arguments up to [`REDUCIBLE`].
    #[inline(always)]
    fn tan(self) -> Self {
        let (quadrant, sin, cos) = sin_cos(self);
        let is_even = quadrant & 1 == 0;
        (if is_even { sin } else { -cos } / if is_even { cos } else { sin }) as f32
    }

    #[inline(always)]
    fn atan2(self, x: Self) -> Self {
        f32::atan2(self, x)
    }
}

/// The largest argument for which this file's `sin`, `cos` and `tan` of `f32` are accurate.
pub(crate) const REDUCIBLE: f32 = 1e9;

const LN_2_HIGH: f32 = 0.693_145_75;
const LN_2_LOW: f32 = 1.428_606_8e-6;

/// A number that, added to another of less than 2²², leaves the nearest integer in the last bits.
const ROUNDING: f32 = 12_582_912.0;

/// Returns 2ⁿ, for n from -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Splits x into n·ln 2 + r, where |r| is at most half of ln 2.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDING);
    let n = shifted - ROUNDING;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    (shifted.to_bits().wrapping_sub(ROUNDING.to_bits()) as i32, r)
}

/// Returns eʳ - 1, for |r| up to half of ln 2.
#[inline(always)]
fn expm1_reduced(r: f32) -> f32 {
    let rest = polynomial!(r, [0.5, 0.166_666_66, 0.041_666_28, 0.008_333_503, 0.001_394_577, 0.000_197_895_26_f32]);
    (r * r).mul_add(rest, r)
}

/// Splits x into 2ⁿ·m, with m around 1. Returns n and the logarithm of m.
#[inline(always)]
fn log_parts(x: f32) -> (f32, f32) {
    let is_small = x < f32::MIN_POSITIVE;
    let scaled = if is_small { x * 8_388_608.0 } else { x };
    // m is from √½ to √2.
    let bits = scaled.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let n = (bits as i32) >> 23;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits()));
    let n = n as f32 - if is_small { 23.0 } else { 0.0 };
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let rest = z * polynomial!(z, [0.666_666_6, 0.400_003_55, 0.285_358_85, 0.236_105_9_f32]);
    // The result is 2s + s·rest, where 2s = f - s·f: small terms are added first.
    let half = 0.5 * f * f;
    (n, f - (half - s * (half + rest)))
}

/// Returns `log`, or the special value of the logarithm of infinity, zero or a negative number.
#[inline(always)]
fn special_log(x: f32, log: f32) -> f32 {
    let log = if x < f32::INFINITY { log } else { x };
    let log = if x == 0.0 { f32::NEG_INFINITY } else { log };
    if x < 0.0 { f32::NAN } else { log }
}

/// Returns the quadrant, and sine and cosine of the rest of the angle. It computes in `f64`, so that the reduction
/// needs no further care.
#[inline(always)]
fn sin_cos(x: f32) -> (i64, f64, f64) {
    const ROUNDING: f64 = 6_755_399_441_055_744.0;
    const HALF_PI_LOW: f64 = 6.123_233_995_736_766e-17;
    let x = f64::from(x);
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUNDING);
    let n = shifted - ROUNDING;
    let r = n.mul_add(-HALF_PI_LOW, n.mul_add(-std::f64::consts::FRAC_PI_2, x));
    let z = r * r;
    let sin = polynomial!(
        z,
        [
            -0.166_666_666_414_141_3,
            0.008_333_329_361_230_947,
            -0.000_198_393_268_694_306_25,
            2.718_235_164_624_063e-6_f64,
        ]
    );
    let cos = polynomial!(
        z,
        [
            -0.499_999_999_995_403_2,
            0.041_666_666_561_213_54,
            -0.001_388_888_103_078_463,
            2.479_903_069_212_504e-5,
            -2.717_933_920_355_214e-7_f64,
        ]
    );
    let quadrant = shifted.to_bits().wrapping_sub(ROUNDING.to_bits()) as i64;
    (quadrant, (r * z).mul_add(sin, r), z.mul_add(cos, 1.0))
}

/// Computes the inverse error function: Winitzki's approximation, refined by Halley's steps.
fn inverse_erf(y: f64) -> f64 {
    if y.abs() >= 1.0 || y.is_nan() {
        return if y.abs() == 1.0 { f64::INFINITY.copysign(y) } else { f64::NAN };
    }
    const A: f64 = 0.147;
    let log = (-y * y).ln_1p();
    let b = 2.0 / (std::f64::consts::PI * A) + log / 2.0;
    let mut x = ((b * b - log / A).sqrt() - b).sqrt();
    for _ in 0..3 {
        // 1 - erf keeps its digits where erf is nearly 1.
        let error = if x > 1.0 { libm::erfc(x) - (1.0 - y.abs()) } else { y.abs() - libm::erf(x) };
        let step = error * std::f64::consts::PI.sqrt() / 2.0 * (x * x).exp();
        x += step / (1.0 - x * step);
    }
    x.copysign(y)
}
