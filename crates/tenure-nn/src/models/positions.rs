//! Positions of tokens in attention, as in Hugging Face's Transformers: rotary positions (Su et al., 2021), and relative
//! ones (Raffel et al., 2020), by which attention adds a number that depends on the distance of two tokens.

use std::f64::consts::TAU;

use parking_lot::Mutex;
use serde::Deserialize;
use tenure_tensor::{DType, Result, Tensor, TensorError};

use super::config::{ConfigFile, Refusal};
use crate::layers::{Embedding, Layer};
use crate::{Init, Scope, module};

/// Rotary positions: pairs of numbers in queries and keys are turned by an angle that depends on the position. Read
/// from `rope_parameters` of `config.json`, or from `rope_theta` and `rope_scaling` of earlier files.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ConfigFile")]
pub struct Rope {
    /// The base of the wavelengths: nearly the number of positions in a radian of the longest wave.
    pub theta: f64,
    /// The scaling for texts longer than those of the first training.
    pub scaling: RopeScaling,
}

/// A way to lengthen the waves. Any other way in a file is refused, since it would be computed wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// The waves keep their lengths.
    #[default]
    Default,
    /// All waves become longer.
    Linear {
        /// The factor of the wavelengths.
        factor: f64,
    },
    /// The long waves become longer, as in Llama 3.1.
    Llama3 {
        /// The factor of the longest wavelengths.
        factor: f64,
        /// Waves that fit fewer times than this into the original length become `factor` times as long.
        low_freq_factor: f64,
        /// Waves that fit more often than this into the original length keep their lengths. Between the two, the factor
        /// changes gradually.
        high_freq_factor: f64,
        /// The length, in tokens, of the texts of the first training.
        original_max_position_embeddings: f64,
    },
}

/// The cosines and sines of the angles, each `[length, size / 2]`.
pub(super) struct Waves {
    cos: Tensor,
    sin: Tensor,
}

/// A cache of the last computed waves. Texts that are not longer reuse them, without computing or copying them again.
#[derive(Default)]
pub(super) struct LastWaves(Mutex<Option<Waves>>);

impl LastWaves {
    /// Returns the waves of the first `length` positions for heads of `size` numbers, with the dtype and device of
    /// `like`.
    pub(super) fn get(&self, rope: &Rope, length: usize, size: usize, like: &Tensor) -> Result<Waves> {
        let mut last = self.0.lock();
        let fitting = last.as_ref().filter(|Waves { cos, .. }| {
            let is_long = matches!(cos.sizes(), [longest, half] if *longest >= length && *half == size / 2);
            is_long && (cos.dtype(), cos.device()) == (like.dtype(), like.device())
        });
        let waves = match fitting {
            Some(waves) => waves,
            None => {
                let Waves { cos, sin } = rope.waves(length, size, like.dtype())?;
                last.insert(Waves { cos: cos.to_device(like.device())?, sin: sin.to_device(like.device())? })
            }
        };
        Ok(Waves { cos: waves.cos.narrow(0, 0, length)?, sin: waves.sin.narrow(0, 0, length)? })
    }
}

impl Default for Rope {
    /// The positions of the first Llamas.
    fn default() -> Self {
        Self { theta: 10_000.0, scaling: RopeScaling::Default }
    }
}

impl TryFrom<ConfigFile> for Rope {
    type Error = Refusal;

    fn try_from(file: ConfigFile) -> Result<Self, Refusal> {
        // Like Transformers: the first key that is not empty is taken, and what it lacks comes from the file itself.
        let given: [Option<ConfigFile>; 2] = [file.optional("rope_scaling")?, file.optional("rope_parameters")?];
        let parameters = given.into_iter().flatten().find(|given| !given.is_empty()).unwrap_or_default();
        let theta = parameters.or("rope_theta", file.or("rope_theta", Self::default().theta)?)?;
        // Only models that turn all numbers of a head are supported.
        [&parameters, &file].into_iter().try_for_each(|file| file.only("partial_rotary_factor", 1.0))?;
        let kind = parameters.or("type", parameters.or("rope_type", "default".to_owned())?)?;
        Ok(Self { theta, scaling: parameters.with("rope_type", kind).all()? })
    }
}

impl Rope {
    /// Refuses numbers that give no valid angle.
    pub(super) fn check(&self) -> Result<()> {
        let factor = match self.scaling {
            RopeScaling::Default => 1.0,
            RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } => factor,
        };
        match [("theta", self.theta), ("factor", factor)]
            .into_iter()
            .find(|(_, value)| !value.is_finite() || *value <= 0.0)
        {
            None => Ok(()),
            Some((name, value)) => {
                Err(TensorError::argument("Rope", format!("{name} is {value}: a number above 0 is expected")))
            }
        }
    }

    /// Computes the waves of the first `length` positions for heads of `size` numbers.
    fn waves(&self, length: usize, size: usize, dtype: DType) -> Result<Waves> {
        // Single precision, as in Hugging Face.
        let frequencies: Vec<f32> = (0..size / 2).map(|pair| self.frequency(pair, size) as f32).collect();
        let angles: Vec<f32> =
            (0..length).flat_map(|position| frequencies.iter().map(move |one| position as f32 * one)).collect();
        let angles = Tensor::from_slice(&angles, &[length, frequencies.len()])?;
        Ok(Waves { cos: angles.cos()?.to_dtype(dtype)?, sin: angles.sin()?.to_dtype(dtype)? })
    }

    fn frequency(&self, pair: usize, size: usize) -> f64 {
        let frequency = self.theta.powf((2 * pair) as f64 / size as f64).recip();
        match self.scaling {
            RopeScaling::Default => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let times = original_max_position_embeddings * frequency / TAU;
                let kept = ((times - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}

impl Waves {
    /// Turns each pair of a number in the first half and its partner in the second half.
    pub(super) fn turn(&self, x: &Tensor) -> Result<Tensor> {
        x.rotary(&self.cos, &self.sin)
    }
}

/// The distance from which on all distances share a bucket.
const FAR: f32 = 128.0;

/// The table of numbers that attention adds to the products of queries and keys, for each distance and head.
pub(super) struct RelativePositions {
    /// `[buckets, heads]`.
    table: Embedding,
}
module!(RelativePositions { table });

impl RelativePositions {
    pub(super) fn new(scope: &Scope, buckets: usize, heads: usize, init: Init) -> Result<Self> {
        Ok(Self { table: Embedding::with_init(scope, buckets, heads, init)? })
    }

    /// Computes the numbers that attention adds in texts of `length` tokens, `[1 or batch, heads, length, length]`.
    /// They are -∞ where `mask`, which broadcasts to these sizes, is false.
    pub(super) fn forward(&self, length: usize, mask: Option<&Tensor>) -> Result<Tensor> {
        let buckets = self.table.weight.size(0)?;
        let longest = length.saturating_sub(1) as i64;
        let by_distance: Vec<i64> = (-longest..=longest).map(|distance| bucket(distance, buckets)).collect();
        // A query's keys have `length` consecutive distances, which begin one lower for each next query.
        let found = (0..length).rev().flat_map(|first| &by_distance[first..first + length]).copied().collect();
        let found = Tensor::from_vec(found, &[length, length])?.to_device(self.table.weight.device())?;
        let added = self.table.forward(&found)?.permute(&[2, 0, 1])?.unsqueeze(0)?;
        match mask {
            Some(mask) => added.masked_fill(&mask.logical_not()?, f64::NEG_INFINITY),
            None => Ok(added),
        }
    }
}

/// Returns the bucket of a key that is `distance` tokens after a query. Half of the buckets are for keys after the
/// query. Near distances have a bucket each; farther ones share buckets that widen with the distance.
fn bucket(distance: i64, buckets: usize) -> i64 {
    let half = (buckets / 2) as i64;
    let side = if distance > 0 { half } else { 0 };
    let distance = distance.abs();
    let near = half / 2;
    if distance < near {
        return side + distance;
    }
    // Single precision, as in Transformers.
    let share = (distance as f32 / near as f32).ln() / (FAR / near as f32).ln();
    side + (near + (share * (half - near) as f32) as i64).min(half - 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    const LLAMA3: [f64; 8] = [
        1.0,
        0.193922758102417,
        0.03760603070259094,
        0.00729266507551074,
        0.0005248460220173001,
        3.428102354519069e-05,
        6.647869668086059e-06,
        1.289173155782919e-06,
    ];
    const LINEAR: [f64; 8] = [
        0.25,
        0.04848068952560425,
        0.009401507675647736,
        0.001823166268877685,
        0.0003535533614922315,
        6.856204709038138e-05,
        1.3295739336172119e-05,
        2.578346311565838e-06,
    ];

    /// Compares frequencies of heads of 16 numbers with `ROPE_INIT_FUNCTIONS[rope_type](config, "cpu")` of
    /// Transformers.
    fn check(file: serde_json::Value, expected: [f64; 8]) {
        let rope: Rope = serde_json::from_value(file).unwrap();
        for (pair, expected) in expected.into_iter().enumerate() {
            let frequency = rope.frequency(pair, 16);
            assert!((frequency / expected - 1.0).abs() < 1e-6, "{pair}: {frequency}, not {expected}");
        }
    }

    #[test]
    fn frequencies_are_those_of_transformers_whichever_version_wrote_the_file() {
        let scaling = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192 });
        check(json!({ "rope_theta": 500000.0, "rope_scaling": scaling.clone() }), LLAMA3);
        let mut parameters = scaling;
        parameters["rope_theta"] = json!(500000.0);
        check(json!({ "rope_parameters": parameters }), LLAMA3);
        check(json!({ "rope_theta": 500000, "rope_scaling": { "rope_type": "linear", "factor": 4 } }), LINEAR);
        check(json!({ "rope_theta": 500000, "rope_scaling": { "type": "linear", "factor": 4 } }), LINEAR);
    }

    #[test]
    fn missing_keys_have_the_values_of_the_first_llamas() {
        let nothing = [json!({}), json!({ "rope_scaling": null }), json!({ "rope_scaling": {} })];
        let without_type = [json!({ "rope_parameters": { "rope_theta": 1e4 } }), json!({ "rope_parameters": {} })];
        for file in nothing.into_iter().chain(without_type).chain([json!({ "rope_theta": 10000.0 })]) {
            assert_eq!(serde_json::from_value::<Rope>(file).unwrap(), Rope::default());
        }
    }

    #[test]
    fn theta_stands_inside_or_outside_and_what_is_empty_says_nothing() {
        let both = json!({ "rope_scaling": { "factor": 2 }, "rope_parameters": { "rope_theta": 7 } });
        for (file, expected) in [
            (json!({ "rope_theta": 5e5, "rope_parameters": { "rope_type": "default" } }), 5e5),
            (json!({ "rope_theta": 5e5, "rope_parameters": { "rope_theta": 7 } }), 7.0),
            (json!({ "rope_scaling": {}, "rope_parameters": { "rope_theta": 7 } }), 7.0),
            (both, Rope::default().theta),
        ] {
            assert_eq!(serde_json::from_value::<Rope>(file).unwrap().theta, expected);
        }
    }

    #[test]
    fn other_ways_of_scaling_are_refused() {
        for name in ["type", "rope_type"] {
            let file = json!({ "rope_theta": 10000.0, "rope_scaling": { name: "yarn", "factor": 4.0 } });
            let message = serde_json::from_value::<Rope>(file).unwrap_err().to_string();
            assert!(message.contains("unknown variant `yarn`"), "{message}");
        }
    }

    #[test]
    fn heads_that_are_turned_in_part_are_refused() {
        let inside = json!({ "rope_parameters": { "rope_type": "default", "partial_rotary_factor": 0.5 } });
        for file in [json!({ "partial_rotary_factor": 0.5 }), inside] {
            let message = serde_json::from_value::<Rope>(file).unwrap_err().to_string();
            assert!(message.contains("partial_rotary_factor is 0.5: only models with 1.0 can be loaded"), "{message}");
        }
    }
}
