//! The market for room in the fast tier. Each kernel is a *seller*, which sets a price for room while it runs; each
//! tensor is a *buyer*, which bids for room during its lifetime.

use tenure_plan::{FixedPlacement, Problem};

/// A problem as sellers and buyers see it. It depends neither on the unit of bytes nor on the number of kernels.
pub(crate) struct Market<'a> {
    problem: &'a Problem,
    capacity_bytes: u64,
    /// The tensors for which room is worth something.
    pub(crate) buyers: Vec<Buyer>,
    /// The bytes of all live tensors divided by the capacity, at each kernel.
    pub(crate) pressure: Vec<f64>,
}

/// A tensor that may get room.
pub(crate) struct Buyer {
    pub(crate) tensor: usize,
    /// The kernels of its life, from `begin` to before `end`.
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// Bytes divided by the capacity.
    pub(crate) size: f64,
    /// The worth of room for it, divided by the capacity.
    pub(crate) worth: f64,
    /// The logarithm of the worth per byte.
    pub(crate) log_worth: f64,
}

/// The demand at each kernel for some prices, divided by the capacity.
pub(crate) struct Demand {
    /// The bytes of all buyers for which room is worth its price.
    pub(crate) wanted: Vec<f64>,
    /// The part of `wanted` that is worth less than [`NEAR`] times the price.
    pub(crate) wavering: Vec<f64>,
    /// The bytes that are not wanted, but would be if prices were lower by a factor of [`NEAR`].
    pub(crate) tempted: Vec<f64>,
}

/// The factor within which a worth is close to a price.
const NEAR: f64 = 1.3;

impl<'a> Market<'a> {
    /// Creates the market of a problem. `worth` returns the gain if a tensor is in the fast tier, in any unit.
    pub(crate) fn new(problem: &'a Problem, capacity_bytes: u64, worth: impl Fn(usize) -> f64) -> Self {
        let capacity = capacity_bytes.max(1) as f64;
        let buyers = (0..problem.tensors().len())
            .filter_map(|tensor| {
                let life = problem.lifetime(tensor)?;
                let bytes = problem.tensors()[tensor].bytes as f64;
                let worth = worth(tensor);
                (worth > 0.0).then(|| Buyer {
                    tensor,
                    begin: *life.start(),
                    end: life.end() + 1,
                    size: bytes / capacity,
                    worth: worth / capacity,
                    log_worth: (worth / bytes.max(1e-9)).ln(),
                })
            })
            .collect();
        let pressure = problem.live_bytes(|_| true).into_iter().map(|bytes| bytes as f64 / capacity).collect();
        Self { problem, capacity_bytes, buyers, pressure }
    }

    /// Returns the number of kernels.
    pub(crate) fn kernels(&self) -> usize {
        self.pressure.len()
    }

    /// Returns one price for all kernels, at which the total demand matches the supply. At this price, buyers come in
    /// the order of the density rule.
    pub(crate) fn uniform_log_prices(&self) -> Vec<f64> {
        let supply: f64 = self.pressure.iter().map(|pressure| pressure.min(1.0)).sum();
        let mut bids: Vec<(f64, f64)> = (self.buyers.iter())
            .map(|buyer| {
                let kernels = (buyer.end - buyer.begin) as f64;
                (buyer.log_worth - kernels.ln(), buyer.size * kernels)
            })
            .collect();
        bids.sort_by(|left, right| right.0.total_cmp(&left.0));
        let mut left = supply;
        let marginal = bids.iter().find(|(_, amount)| {
            left -= amount;
            left < 0.0
        });
        let log_price = marginal.or(bids.last()).map_or(0.0, |(bid, _)| *bid);
        vec![log_price; self.kernels()]
    }

    /// Returns each buyer's bid: the logarithm of its worth per byte over the sum of the prices it pays. A buyer wants
    /// room if its bid is above 0.
    pub(crate) fn bids(&self, log_prices: &[f64]) -> Vec<f64> {
        let mut sums = Vec::with_capacity(log_prices.len() + 1);
        let mut sum = 0.0;
        sums.push(sum);
        for log_price in log_prices {
            sum += log_price.exp();
            sums.push(sum);
        }
        self.buyers
            .iter()
            .map(|buyer| buyer.log_worth - (sums[buyer.end] - sums[buyer.begin]).max(1e-300).ln())
            .collect()
    }

    /// Returns the demand for room at these bids.
    pub(crate) fn demand(&self, bids: &[f64]) -> Demand {
        let near = NEAR.ln();
        let [wanted, wavering, tempted] =
            [(0.0, f64::INFINITY), (0.0, near), (-near, 0.0)].map(|(low, high)| self.demand_between(bids, low, high));
        Demand { wanted, wavering, tempted }
    }

    /// Returns the demand of the buyers whose bids are above `low` and at most `high`.
    fn demand_between(&self, bids: &[f64], low: f64, high: f64) -> Vec<f64> {
        let mut changes = vec![0.0; self.kernels() + 1];
        for (buyer, _) in self.buyers.iter().zip(bids).filter(|(_, bid)| **bid > low && **bid <= high) {
            changes[buyer.begin] += buyer.size;
            changes[buyer.end] -= buyer.size;
        }
        changes.pop();
        let mut live = 0.0;
        changes.iter_mut().for_each(|change| {
            live += *change;
            *change = live.max(0.0);
        });
        changes
    }

    /// Gives room to buyers in the order of their bids, each if it fits, and the rest to tensors that gain nothing from
    /// it.
    pub(crate) fn place(&self, bids: &[f64]) -> FixedPlacement {
        let mut order: Vec<usize> = (0..bids.len()).collect();
        order.sort_by(|left, right| bids[*right].total_cmp(&bids[*left]));
        let order = order.into_iter().map(|buyer| self.buyers[buyer].tensor);
        let others = 0..self.problem.tensors().len();
        FixedPlacement::first_fit(self.problem, order.chain(others), self.capacity_bytes)
    }

    /// Returns the bytes taken at each kernel, divided by the capacity.
    pub(crate) fn taken(&self, placement: &FixedPlacement) -> Vec<f64> {
        let live = self.problem.live_bytes(|tensor| placement.is_fast(tensor));
        live.into_iter().map(|bytes| bytes as f64 / self.capacity()).collect()
    }

    /// Returns the capacity of the fast tier in bytes.
    pub(crate) fn capacity(&self) -> f64 {
        self.capacity_bytes.max(1) as f64
    }

    /// Returns an upper bound of every placement's score: the most that buyers gain and sellers get at these prices
    /// (the Lagrangian dual). It holds for any prices, and gets lower the closer they are to the best.
    pub(crate) fn bound(&self, log_prices: &[f64]) -> f64 {
        let bids = self.buyers.iter().zip(self.bids(log_prices));
        let surplus: f64 = bids.map(|(buyer, bid)| buyer.worth * (1.0 - (-bid).exp()).max(0.0)).sum();
        let prices: f64 = log_prices.iter().map(|price| price.exp()).sum();
        let all: f64 = self.buyers.iter().map(|buyer| buyer.worth).sum();
        if all == 0.0 { 1.0 } else { ((surplus + prices) / all).min(1.0) }
    }
}
