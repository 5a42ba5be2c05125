//! Relative positions (Raffel et al., 2020): attention adds a number that depends on the distance of two tokens, as in
//! MPNet.

use tenure_tensor::{Result, Tensor};

use crate::layers::{Embedding, Layer};
use crate::{Init, Scope, module};

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
