//! Rounds of the [`Market`]: sellers change prices, buyers bid, and the highest bids get room.

use tenure_plan::FixedPlacement;
use tenure_tensor::{Tensor, autograd};

use crate::features::MarketState;
use crate::market::{Demand, Market};
use crate::policy::Policy;

/// The largest change of a price's logarithm in one round.
const MAX_CHANGE: f64 = 2.0;
/// The largest change of a price's logarithm in the first step that follows the demand.
const FIRST_DEMAND_STEP: f64 = 0.6;
/// The rate at which these steps get smaller.
const STEP_DECAY: f64 = 0.05;
/// The largest change of a price's logarithm over all rounds.
const MAX_TOTAL_CHANGE: f64 = 20.0;

/// The state of a market after some rounds.
pub(crate) struct Play<'a> {
    pub(crate) market: &'a Market<'a>,
    pub(crate) log_prices: Vec<f64>,
    /// The prices before the first round.
    first_log_prices: Vec<f64>,
    changes: Vec<f64>,
    taken: Vec<f64>,
    demand: Demand,
    round: usize,
}

impl<'a> Play<'a> {
    pub(crate) fn new(market: &'a Market<'a>) -> Self {
        let log_prices = market.uniform_log_prices();
        let demand = market.demand(&market.bids(&log_prices));
        let nothing = vec![0.0; market.kernels()];
        let first_log_prices = log_prices.clone();
        Self { market, log_prices, first_log_prices, changes: nothing.clone(), taken: nothing, demand, round: 0 }
    }

    /// Returns the features that sellers see.
    pub(crate) fn features(&self) -> Vec<f32> {
        let Self { market, log_prices, demand, taken, changes, round, .. } = self;
        MarketState { market, log_prices, demand, taken, changes, round: *round }.features()
    }

    /// Returns a policy's changes of prices, as a tensor that gradients flow through.
    pub(crate) fn changes_by(&self, policy: &Policy) -> tenure_tensor::Result<Tensor> {
        policy.changes(self.features())?.tanh()?.mul(MAX_CHANGE)
    }

    /// Changes prices by the difference of demand and supply, without a policy. Steps get smaller with `number`, so
    /// that prices converge to the best ones. Returns the bids at the new prices.
    pub(crate) fn follow_demand(&mut self, number: usize) -> Vec<f64> {
        let step = FIRST_DEMAND_STEP / (1.0 + number as f64 * STEP_DECAY);
        let changes = self.demand.wanted.iter().map(|wanted| step * (wanted - 1.0).clamp(-1.0, 1.0));
        self.apply_changes(changes.collect())
    }

    /// Adds `changes` to the logarithms of the prices. Returns the bids at the new prices.
    pub(crate) fn apply_changes(&mut self, changes: Vec<f64>) -> Vec<f64> {
        for ((price, first), change) in self.log_prices.iter_mut().zip(&self.first_log_prices).zip(&changes) {
            *price = (*price + change).clamp(first - MAX_TOTAL_CHANGE, first + MAX_TOTAL_CHANGE);
        }
        self.changes = changes;
        self.round += 1;
        let bids = self.market.bids(&self.log_prices);
        self.demand = self.market.demand(&bids);
        bids
    }

    /// Gives room to the highest bids.
    pub(crate) fn place(&mut self, bids: &[f64]) -> FixedPlacement {
        let placement = self.market.place(bids);
        self.taken = self.market.taken(&placement);
        placement
    }

    /// Plays a round by the policy.
    pub(crate) fn round(&mut self, policy: &Policy) -> tenure_tensor::Result<FixedPlacement> {
        let changes = autograd::no_grad(|| self.changes_by(policy)?.to_vec::<f32>())?;
        let bids = self.apply_changes(changes.into_iter().map(f64::from).collect());
        Ok(self.place(&bids))
    }
}
