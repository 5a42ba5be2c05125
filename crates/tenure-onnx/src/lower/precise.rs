//! Functions whose results keep their digits near zero.

use tenure_tensor::DType;

use super::Lower;

/// Magnitudes below this one are small.
const SMALL: f64 = 0.5;

/// The coefficients of erfc, from the highest power on: Numerical Recipes, 6.2.2. The error is less than 1.2e-7 of the
/// result.
const ERFC: [f64; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_87,
    -1.135_203_98,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_68,
    -1.265_512_23,
];

impl Lower<'_, '_> {
    /// Returns `small` where the magnitude of `x` is small, and `large` elsewhere.
    fn by_magnitude(&mut self, x: &str, small: &str, large: &str, dtype: DType) -> String {
        let magnitude = self.op("Abs", &[x], vec![]);
        let limit = self.constant(SMALL, dtype);
        let is_small = self.op("Less", &[&magnitude, &limit], vec![]);
        self.op("Where", &[&is_small, small, large], vec![])
    }

    /// Computes exp(x) - 1; by tanh(x / 2) where x is small.
    pub(super) fn expm1(&mut self, x: &str, dtype: DType) -> String {
        let [half, one, two] = [0.5, 1.0, 2.0].map(|number| self.constant(number, dtype));
        let power = self.op("Exp", &[x], vec![]);
        let large = self.op("Sub", &[&power, &one], vec![]);
        let halved = self.op("Mul", &[x, &half], vec![]);
        let tanh = self.op("Tanh", &[&halved], vec![]);
        let doubled = self.op("Mul", &[&tanh, &two], vec![]);
        let rest = self.op("Sub", &[&one, &tanh], vec![]);
        let small = self.op("Div", &[&doubled, &rest], vec![]);
        self.by_magnitude(x, &small, &large, dtype)
    }

    /// Computes log(1 + x); where x is small, by 2 atanh(x / (2 + x)) as a series.
    pub(super) fn log1p(&mut self, x: &str, dtype: DType) -> String {
        let [one, two] = [1.0, 2.0].map(|number| self.constant(number, dtype));
        let sum = self.op("Add", &[x, &one], vec![]);
        let large = self.op("Log", &[&sum], vec![]);
        let below = self.op("Add", &[x, &two], vec![]);
        let ratio = self.op("Div", &[x, &below], vec![]);
        let square = self.op("Mul", &[&ratio, &ratio], vec![]);
        // The ratio is at most 1/3: 17 terms are enough for 64 bits.
        let terms: Vec<f64> = (0..17).rev().map(|term| 2.0 / f64::from(2 * term + 1)).collect();
        let series = self.polynomial(&square, &terms, dtype);
        let small = self.op("Mul", &[&ratio, &series], vec![]);
        self.by_magnitude(x, &small, &large, dtype)
    }

    /// Computes 1 - erf(x), by a fraction's polynomial where x is not small. ONNX Runtime has no erf of 64 bits.
    pub(super) fn erfc(&mut self, x: &str, dtype: DType) -> String {
        let [half, one] = [0.5, 1.0].map(|number| self.constant(number, dtype));
        let erf = self.op("Erf", &[x], vec![]);
        let near = self.op("Sub", &[&one, &erf], vec![]);
        let halved = self.op("Mul", &[x, &half], vec![]);
        let below = self.op("Add", &[&halved, &one], vec![]);
        let fraction = self.op("Reciprocal", &[&below], vec![]);
        let series = self.polynomial(&fraction, &ERFC, dtype);
        let square = self.op("Mul", &[x, x], vec![]);
        let exponent = self.op("Sub", &[&series, &square], vec![]);
        let power = self.op("Exp", &[&exponent], vec![]);
        let far = self.op("Mul", &[&fraction, &power], vec![]);
        let is_far = self.op("Greater", &[x, &half], vec![]);
        self.op("Where", &[&is_far, &far, &near], vec![])
    }

    /// Computes a polynomial with these coefficients, from the highest power on.
    fn polynomial(&mut self, x: &str, coefficients: &[f64], dtype: DType) -> String {
        let mut sum = self.constant(coefficients[0], dtype);
        for coefficient in &coefficients[1..] {
            let product = self.op("Mul", &[&sum, x], vec![]);
            let coefficient = self.constant(*coefficient, dtype);
            sum = self.op("Add", &[&product, &coefficient], vec![]);
        }
        sum
    }
}
