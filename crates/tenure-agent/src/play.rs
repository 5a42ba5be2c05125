//! Rounds of the market.

use tenure_plan::Placement;
use tenure_tensor::{Tensor, autograd};

use crate::features::Scene;
use crate::market::{Demand, Market};
use crate::policy::Policy;

/// How far a price goes in one round, at most: a factor of e to the power of this.
const STEP: f64 = 2.0;
/// How far a price goes at most that follows the demand, in the first step, and how fast steps get smaller.
const FIRST_STEP: f64 = 0.6;
const SHRINKING: f64 = 0.05;
/// How far it goes in all rounds together.
const REACH: f64 = 20.0;

/// How far a market has come.
pub(crate) struct Play<'a> {
    pub(crate) market: &'a Market<'a>,
    pub(crate) log_prices: Vec<f64>,
    /// The prices that all began with.
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

    /// What sellers see.
    pub(crate) fn features(&self) -> Vec<f32> {
        let Self { market, log_prices, demand, taken, changes, round, .. } = self;
        Scene { market, log_prices, demand, taken, changes, round: *round }.features()
    }

    /// What a policy does with prices, as a tensor that gradients go through.
    pub(crate) fn changes_by(&self, policy: &Policy) -> tenure_tensor::Result<Tensor> {
        policy.changes(self.features())?.tanh()?.mul(STEP)
    }

    /// Prices go where what is wanted differs from what there is, without a policy: in steps that get smaller with their
    /// number, which end at the best prices. What buyers bid at the new ones.
    pub(crate) fn follow_demand(&mut self, number: usize) -> Vec<f64> {
        let step = FIRST_STEP / (1.0 + number as f64 * SHRINKING);
        let changes = self.demand.wanted.iter().map(|wanted| step * (wanted - 1.0).clamp(-1.0, 1.0));
        self.change(changes.collect())
    }

    /// Prices change. What buyers bid at the new ones.
    pub(crate) fn change(&mut self, changes: Vec<f64>) -> Vec<f64> {
        for ((price, first), change) in self.log_prices.iter_mut().zip(&self.first_log_prices).zip(&changes) {
            *price = (*price + change).clamp(first - REACH, first + REACH);
        }
        self.changes = changes;
        self.round += 1;
        let bids = self.market.bids(&self.log_prices);
        self.demand = self.market.demand(&bids);
        bids
    }

    /// Room goes to the highest bids.
    pub(crate) fn place(&mut self, bids: &[f64]) -> Placement {
        let placement = self.market.place(bids);
        self.taken = self.market.taken(&placement);
        placement
    }

    /// A round by the policy.
    pub(crate) fn round(&mut self, policy: &Policy) -> tenure_tensor::Result<Placement> {
        let changes = autograd::no_grad(|| self.changes_by(policy)?.to_vec::<f32>())?;
        let bids = self.change(changes.into_iter().map(f64::from).collect());
        Ok(self.place(&bids))
    }
}
