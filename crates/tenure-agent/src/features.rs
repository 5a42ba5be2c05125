//! The inputs of the network by which sellers (one for each kernel) change their prices.

use crate::market::{Demand, Market};

/// The number of features of each seller. A change of their meaning needs a new version of policies.
pub(crate) const FEATURES: usize = 18;

/// The state of the market after the rounds so far.
pub(crate) struct MarketState<'a> {
    pub(crate) market: &'a Market<'a>,
    /// The logarithms of the prices of room, one for each kernel.
    pub(crate) log_prices: &'a [f64],
    pub(crate) demand: &'a Demand,
    /// The room taken in the round before.
    pub(crate) taken: &'a [f64],
    /// The changes of prices in the round before.
    pub(crate) changes: &'a [f64],
    pub(crate) round: usize,
}

impl MarketState<'_> {
    /// Returns [`FEATURES`] numbers of about -1 to 1 for each kernel, one kernel after the other.
    pub(crate) fn features(&self) -> Vec<f32> {
        let kernels = self.market.kernels();
        let Demand { wanted, wavering, tempted } = self.demand;
        let pressure = &self.market.pressure;
        let peak = pressure.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let excess: Vec<f64> = wanted.iter().map(|wanted| (wanted - 1.0).clamp(-1.0, 1.0)).collect();
        // Where all tensors together do not fill the tier, the rest of it does not count as missing demand.
        let lack: Vec<f64> = (0..kernels).map(|at| pressure[at].min(1.0) - wanted[at].min(1.0)).collect();
        let near = (kernels / 100).max(1);
        let near_excess = smooth(&excess, near);
        let far_excess = smooth(&excess, 8 * near);
        let near_pressure = smooth(pressure, near);
        let far_pressure = smooth(pressure, 8 * near);
        let free: Vec<f64> = (0..kernels).map(|at| pressure[at].min(1.0) - self.taken[at]).collect();
        let near_free = smooth(&free, near);
        let mean_price = mean(self.log_prices);
        let mean_excess = mean(&excess);
        let mean_lack = mean(&lack);
        let round = (self.round as f64 / 8.0).min(2.0) - 1.0;
        let mut features = Vec::with_capacity(kernels * FEATURES);
        for at in 0..kernels {
            let row: [f64; FEATURES] = [
                log(pressure[at]),
                f64::from(pressure[at] > 1.0),
                pressure[at] / peak,
                log(peak),
                log(near_pressure[at]),
                log(far_pressure[at]),
                excess[at],
                log(wanted[at]),
                near_excess[at],
                far_excess[at],
                lack[at],
                log(wavering[at]),
                log(tempted[at]),
                3.0 * near_free[at],
                ((self.log_prices[at] - mean_price) / 4.0).clamp(-1.5, 1.5),
                self.changes[at],
                mean_excess - mean_lack,
                round,
            ];
            features.extend(row.map(|value| value as f32));
        }
        features
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns for each place the mean of the values at most `width` away.
fn smooth(values: &[f64], width: usize) -> Vec<f64> {
    let mut sums = vec![0.0];
    let mut sum = 0.0;
    for value in values {
        sum += value;
        sums.push(sum);
    }
    (0..values.len())
        .map(|at| {
            let begin = at.saturating_sub(width);
            let end = (at + width + 1).min(values.len());
            (sums[end] - sums[begin]) / (end - begin) as f64
        })
        .collect()
}

/// Returns a logarithm, scaled and limited to a feature.
fn log(value: f64) -> f64 {
    (value.max(1e-3).ln() / 3.0).clamp(-1.5, 1.5)
}
