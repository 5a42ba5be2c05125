//! Relative positions (Raffel et al., 2020): attention adds a number for the distance of two tokens, as MPNet does.

use tenure_tensor::{Result, Tensor};

use crate::layers::{Embedding, Layer};
use crate::{Init, Scope, module};

/// Distances from this one on are not told apart.
const FAR: f32 = 128.0;

/// The numbers that attention adds to products of queries and keys, for each head, by their distance.
pub(super) struct RelativePositions {
    /// `[buckets, heads]`.
    table: Embedding,
}
module!(RelativePositions { table });

impl RelativePositions {
    pub(super) fn new(scope: &Scope, buckets: usize, heads: usize, init: Init) -> Result<Self> {
        Ok(Self { table: Embedding::with_init(scope, buckets, heads, init)? })
    }

    /// The numbers that attention adds in texts of `length` tokens, `[1 or batch, heads, length, length]`. Nothing is seen
    /// where `mask`, which broadcasts to these sizes, is false.
    pub(super) fn forward(&self, length: usize, mask: Option<&Tensor>) -> Result<Tensor> {
        let buckets = self.table.weight.size(0)?;
        let longest = length.saturating_sub(1) as i64;
        let by_distance: Vec<i64> = (-longest..=longest).map(|distance| bucket(distance, buckets)).collect();
        // The keys of a query are so many distances one after the other, which begin one earlier with the next query.
        let found = (0..length).rev().flat_map(|first| &by_distance[first..first + length]).copied().collect();
        let found = Tensor::from_vec(found, &[length, length])?.to_device(self.table.weight.device())?;
        let added = self.table.forward(&found)?.permute(&[2, 0, 1])?.unsqueeze(0)?;
        match mask {
            Some(mask) => added.masked_fill(&mask.logical_not()?, f64::NEG_INFINITY),
            None => Ok(added),
        }
    }
}

/// The bucket of a key that comes so many tokens after a query: half of all are for keys behind it. Near ones have one each,
/// others share some, the more of them the farther they are.
fn bucket(distance: i64, buckets: usize) -> i64 {
    let half = (buckets / 2) as i64;
    let (side, distance) = (if distance > 0 { half } else { 0 }, distance.abs());
    let near = half / 2;
    if distance < near {
        return side + distance;
    }
    // In single precision, as Transformers computes it.
    let share = (distance as f32 / near as f32).ln() / (FAR / near as f32).ln();
    side + (near + (share * (half - near) as f32) as i64).min(half - 1)
}
