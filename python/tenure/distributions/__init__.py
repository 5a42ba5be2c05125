"""Probability distributions, by the names of `torch.distributions`.

Parameters and samples are tensors, and gradients flow through `log_prob`, `entropy`, `kl_divergence` and `rsample`.

Examples
--------
>>> import tenure
>>> from tenure.distributions import Normal, kl_divergence
>>> normal = Normal(tenure.zeros(3), 2.0)
>>> normal.sample((5,)).shape
(5, 3)
>>> kl_divergence(normal, Normal(tenure.zeros(3), 2.0)).tolist()
[0.0, 0.0, 0.0]
"""

from tenure.distributions import constraints
from tenure.distributions.continuous import Exponential, Laplace, Normal, Uniform
from tenure.distributions.discrete import Bernoulli, Categorical
from tenure.distributions.distribution import Distribution
from tenure.distributions.gamma import Beta, Dirichlet, Gamma
from tenure.distributions.independent import Independent
from tenure.distributions.kl import kl_divergence, register_kl

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Dirichlet",
    "Distribution",
    "Exponential",
    "Gamma",
    "Independent",
    "Laplace",
    "Normal",
    "Uniform",
    "constraints",
    "kl_divergence",
    "register_kl",
]
