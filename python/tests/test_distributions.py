"""`tenure.distributions` against `torch.distributions`, and its samples against their distribution functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure import distributions

torch = pytest.importorskip("torch")

POSITIVE = [0.05, 0.4, 1.0, 2.5, 9.0, 60.0]
OTHERS = [1.3, 0.2, 4.0, 2.5, 0.7, 45.0]
REAL = [-3.0, -0.5, 0.0, 0.7, 2.0, 10.0]
SHARES = [0.01, 0.3, 0.5, 0.77, 0.9, 0.999]
LOGITS = [[0.3, -1.0, 2.0, 0.0], [5.0, 1.0, -3.0, 0.5]]
OTHER_LOGITS = [[1.3, -2.0, 0.0, 0.1], [0.0, 1.0, -1.0, 0.5]]
SIMPLEX = [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.15, 0.05]]
VECTORS = [[0.5, 2.0, 3.0, 1.5], [9.0, 0.1, 30.0, 1.0]]
OTHER_VECTORS = [[1.5, 2.0, 0.3, 4.0], [0.9, 1.1, 3.0, 7.0]]

Parameters = dict[str, Any]
# A kind, parameters, other parameters of the same sizes, and values.
CASES: list[tuple[str, Parameters, Parameters, Any]] = [
    ("Normal", {"loc": REAL, "scale": POSITIVE}, {"loc": SHARES, "scale": OTHERS}, [0.3, -1.0, 2.0, 5.0, 0.0, 7.0]),
    ("Laplace", {"loc": REAL, "scale": POSITIVE}, {"loc": SHARES, "scale": OTHERS}, [0.3, -1.0, 2.0, 5.0, 0.1, 7.0]),
    (
        "Uniform",
        {"low": REAL, "high": [20.0] * 6},
        {"low": [-5.0] * 6, "high": [21.0] * 6},
        [10.5, 11.0, 12, 13, 14, 15],
    ),
    ("Exponential", {"rate": POSITIVE}, {"rate": OTHERS}, [0.1, 0.5, 1.0, 0.0, 3.0, 0.01]),
    ("Gamma", {"concentration": POSITIVE, "rate": OTHERS}, {"concentration": OTHERS, "rate": POSITIVE}, POSITIVE),
    (
        "Beta",
        {"concentration1": POSITIVE, "concentration0": OTHERS},
        {"concentration1": OTHERS, "concentration0": POSITIVE},
        SHARES,
    ),
    ("Bernoulli", {"probs": SHARES}, {"probs": [0.5, 0.2, 0.9, 0.1, 0.3, 0.8]}, [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
    ("Bernoulli", {"logits": REAL}, {"logits": SHARES}, [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
    ("Categorical", {"probs": SIMPLEX}, {"probs": SIMPLEX[::-1]}, [2.0, 0.0]),
    ("Categorical", {"logits": LOGITS}, {"logits": OTHER_LOGITS}, [1.0, 3.0]),
    ("Dirichlet", {"concentration": VECTORS}, {"concentration": OTHER_VECTORS}, SIMPLEX),
]
IDS = [f"{kind}-{'-'.join(parameters)}" for kind, parameters, _, _ in CASES]


def close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> bool:
    """Returns whether a tensor has the sizes and values of PyTorch's."""
    found = torch.tensor(ours.detach().tolist(), dtype=torch.float64)
    return tuple(ours.shape) == tuple(theirs.shape) and torch.allclose(
        found, theirs.detach().double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def made(library: Any, kind: str, parameters: Parameters) -> tuple[Any, list[Any]]:
    """Returns a distribution of a library, and its parameters, which need gradients."""
    given = {
        name: library.tensor(value, dtype=library.float64, requires_grad=True) for name, value in parameters.items()
    }
    return getattr(library.distributions, kind)(**given), list(given.values())


def values(value: Any) -> tuple[Any, Any]:
    return tenure.tensor(value, dtype=tenure.float64), torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("quantity", ["log_prob", "entropy", "kl_divergence"])
@pytest.mark.parametrize(("kind", "parameters", "others", "value"), CASES, ids=IDS)
def test_quantities_and_their_gradients_are_pytorchs(
    kind: str, parameters: Parameters, others: Parameters, value: Any, quantity: str
) -> None:
    def found(library: Any, value: Any) -> tuple[Any, list[Any]]:
        distribution, leaves = made(library, kind, parameters)
        if quantity == "log_prob":
            result = distribution.log_prob(value)
        elif quantity == "entropy":
            result = distribution.entropy()
        else:
            other, more = made(library, kind, others)
            leaves += more
            result = library.distributions.kl_divergence(distribution, other)
        result.sum().backward()
        return result, [leaf.grad for leaf in leaves]

    ours, theirs = values(value)
    result, gradients = found(tenure, ours)
    expected, expected_gradients = found(torch, theirs)
    assert close(result, expected)
    for mine, other in zip(gradients, expected_gradients, strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or close(mine, other, 1e-8)


@pytest.mark.parametrize(("kind", "parameters", "others", "value"), CASES, ids=IDS)
def test_moments_and_shapes_are_pytorchs(kind: str, parameters: Parameters, others: Parameters, value: Any) -> None:
    ours, _ = made(tenure, kind, parameters)
    theirs, _ = made(torch, kind, parameters)
    for name in ("mean", "mode", "variance", "stddev"):
        assert close(getattr(ours, name), getattr(theirs, name)), name
    assert ours.batch_shape == tuple(theirs.batch_shape) and ours.event_shape == tuple(theirs.event_shape)
    assert ours.has_rsample == theirs.has_rsample
    # Its support contains tensors.
    assert kind == "Uniform" or repr(ours.support) == repr(theirs.support)
    assert close(ours.perplexity(), theirs.perplexity())
    wide = (3, *ours.batch_shape)
    assert ours.expand(wide).batch_shape == wide
    assert close(ours.expand(wide).entropy(), theirs.expand(wide).entropy())
    assert ours.expand(wide).sample((2,)).shape == (2, *wide, *ours.event_shape)
    if ours.has_enumerate_support:
        for expand in (True, False):
            assert close(ours.enumerate_support(expand), theirs.enumerate_support(expand))


@pytest.mark.parametrize("kind", ["Normal", "Laplace", "Uniform", "Exponential"])
def test_distribution_functions_are_pytorchs(kind: str) -> None:
    _, parameters, _, value = next(case for case in CASES if case[0] == kind)
    ours, _ = made(tenure, kind, parameters)
    theirs, _ = made(torch, kind, parameters)
    mine, other = values(value)
    assert close(ours.cdf(mine), theirs.cdf(other))
    mine, other = values(SHARES)
    assert close(ours.icdf(mine), theirs.icdf(other))


def test_distribution_functions_of_gamma_distributions_are_pytorchs() -> None:
    shapes = [0.01, 0.5, 1.0, 3.0, 40.0, 2000.0]
    ratios = [1e-6, 0.1, 0.9, 1.0, 1.1, 3.0, 50.0]
    found: list[list[float]] = []
    expected: list[list[float]] = []
    for t, results in ((tenure, found), (torch, expected)):
        a = t.tensor([shape for shape in shapes for _ in ratios], dtype=t.float64)
        x = t.tensor([shape * ratio for shape in shapes for ratio in ratios], dtype=t.float64, requires_grad=True)
        rate = t.tensor(1.5, dtype=t.float64, requires_grad=True)
        probability = t.distributions.Gamma(a, rate).cdf(x)
        probability.sum().backward()
        results += [probability.tolist(), x.grad.tolist(), [rate.grad.item()]]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-14)
    ends = tenure.distributions.Gamma(2.0, 1.0).cdf(tenure.tensor([0.0, math.inf]))
    assert ends.tolist() == [0.0, 1.0]


def test_numbers_make_distributions_of_one_value() -> None:
    normal = distributions.Normal(1, 2.0)
    assert normal.batch_shape == () and normal.sample((3,)).shape == (3,)
    assert repr(normal) == repr(torch.distributions.Normal(1.0, 2.0))
    assert normal.loc.dtype is tenure.float32
    wide = distributions.Gamma(tenure.ones(2, 1), tenure.ones(3))
    assert wide.batch_shape == (2, 3)
    assert repr(wide) == "Gamma(concentration: (2, 3), rate: (2, 3))"


def test_impossible_events_have_infinite_divergence_and_no_entropy() -> None:
    for library in (tenure, torch):
        certain = library.tensor([1.0, 0.0])
        even = library.tensor([0.5, 0.5])
        kinds = library.distributions
        categorical = kinds.kl_divergence(kinds.Categorical(even), kinds.Categorical(certain))
        assert math.isinf(categorical.item())
        bernoulli = kinds.kl_divergence(kinds.Bernoulli(even), kinds.Bernoulli(certain))
        assert [math.isinf(value) for value in bernoulli.tolist()] == [True, True]
        assert kinds.Categorical(logits=library.tensor([0.0, -math.inf]), validate_args=False).entropy().item() == 0


# The values of each continuous kind, and the distribution function by which they become uniform.
Function = Callable[[Any], Any]


def gamma_function(concentration: float, rate: float) -> Function:
    return lambda x: torch.special.gammainc(torch.full_like(x, concentration), x * rate)


SAMPLED: list[tuple[str, tuple[float, ...], Function]] = [
    ("Normal", (1.5, 0.3), lambda x: torch.distributions.Normal(1.5, 0.3).cdf(x)),
    ("Laplace", (1.5, 0.3), lambda x: torch.distributions.Laplace(1.5, 0.3).cdf(x)),
    ("Uniform", (-2.0, 5.0), lambda x: (x + 2) / 7),
    ("Exponential", (3.0,), lambda x: 1 - (-3 * x).exp()),
    *[("Gamma", (a, 2.0), gamma_function(a, 2.0)) for a in (0.1, 0.7, 1.0, 3.5, 40.0)],
    ("Beta", (0.5, 0.5), lambda x: 2 / math.pi * x.sqrt().asin()),
    ("Beta", (3.0, 1.0), lambda x: x**3),
    ("Beta", (0.05, 1.0), lambda x: x**0.05),
    ("Beta", (1.0, 8.0), lambda x: 1 - (1 - x) ** 8),
]
COUNT = 20_000


@pytest.mark.parametrize(("kind", "parameters", "function"), SAMPLED, ids=[f"{k}{p}" for k, p, _ in SAMPLED])
def test_samples_follow_the_distribution_function(kind: str, parameters: tuple[float, ...], function: Function) -> None:
    tenure.manual_seed(11)
    distribution = getattr(distributions, kind)(*[tenure.tensor(p, dtype=tenure.float64) for p in parameters])
    found = torch.tensor(distribution.sample((COUNT,)).tolist(), dtype=torch.float64)
    uniform = function(found).sort().values
    steps = torch.arange(COUNT + 1, dtype=torch.float64) / COUNT
    distance = torch.maximum((uniform - steps[:-1]).abs().max(), (uniform - steps[1:]).abs().max())
    # Kolmogorov and Smirnov's bound for one in a thousand.
    assert distance < 1.95 / math.sqrt(COUNT)
    error = (distribution.variance.item() / COUNT) ** 0.5
    assert abs(found.mean().item() - distribution.mean.item()) < 4 * error


def test_samples_of_events_are_as_frequent_as_probable() -> None:
    tenure.manual_seed(12)
    probs = [0.1, 0.0, 0.6, 0.3]
    sample = distributions.Categorical(tenure.tensor(probs)).sample((COUNT,))
    assert sample.dtype is tenure.int64 and sample.shape == (COUNT,)
    drawn = sample.tolist()
    for event, probability in enumerate(probs):
        error = math.sqrt(probability * (1 - probability) / COUNT)
        assert abs(drawn.count(event) / COUNT - probability) <= 4 * error
    coins = distributions.Bernoulli(tenure.tensor([0.2, 1.0, 0.0])).sample((COUNT,)).mean(0).tolist()
    assert abs(coins[0] - 0.2) < 4 * math.sqrt(0.16 / COUNT) and coins[1:] == [1, 0]


def test_shares_add_up_and_have_the_distributions_moments() -> None:
    tenure.manual_seed(13)
    dirichlet = distributions.Dirichlet(tenure.tensor(VECTORS, dtype=tenure.float64))
    sample = dirichlet.sample((COUNT,))
    assert ((sample.sum(-1) - 1).abs() < 1e-12).all()
    assert ((sample.mean(0) - dirichlet.mean).abs() < 4 * dirichlet.stddev / math.sqrt(COUNT)).all()
    assert ((sample.var(0) / dirichlet.variance - 1).abs() < 0.15).all()


@pytest.mark.parametrize("kind", ["Normal", "Categorical", "Bernoulli", "Beta", "Gamma", "Dirichlet"])
def test_a_seed_repeats_the_samples(kind: str) -> None:
    _, parameters, _, _ = next(case for case in CASES if case[0] == kind)
    distribution, _ = made(tenure, kind, parameters)
    tenure.manual_seed(5)
    first = distribution.sample((100,))
    assert not first.requires_grad
    assert not tenure.equal(distribution.sample((100,)), first)
    tenure.manual_seed(5)
    assert tenure.equal(distribution.sample((100,)), first)


@pytest.mark.parametrize("kind", ["Bernoulli", "Categorical"])
def test_no_gradient_flows_through_samples_of_integers(kind: str) -> None:
    distribution = getattr(distributions, kind)(tenure.tensor([0.5, 0.5]))
    with pytest.raises(NotImplementedError, match="rsample"):
        distribution.rsample()


def test_gradients_of_gamma_samples_are_pytorchs() -> None:
    tenure.manual_seed(21)
    concentration = tenure.tensor([0.01, 0.1, 0.5, 1.0, 2.0, 7.9, 8.1, 30.0, 500.0], dtype=tenure.float64)
    concentration.requires_grad_()
    rate = tenure.full((9,), 2.0, dtype=tenure.float64, requires_grad=True)
    sample = distributions.Gamma(concentration, rate).rsample((500,))
    sample.sum().backward()
    drawn = torch.tensor(sample.detach().tolist(), dtype=torch.float64)
    given = torch.tensor(concentration.tolist(), dtype=torch.float64)
    slopes = torch._standard_gamma_grad(given.expand(500, 9).contiguous(), drawn * 2) / 2
    assert concentration.grad is not None and rate.grad is not None
    assert close(concentration.grad, slopes.sum(0), 1e-6)
    assert close(rate.grad, -(drawn / 2).sum(0), 1e-9)


def test_gradients_of_gamma_samples_are_those_of_the_distribution_function() -> None:
    """The derivative is -(dF / da) / f, where differences give dF / da."""
    from tenure.distributions.standard_gamma import standard_gamma_grad

    a = torch.tensor([[0.1], [0.6], [1.0], [3.0], [7.0], [12.0], [90.0]], dtype=torch.float64)
    # The quantiles of Wilson and Hilferty, near enough.
    normal = torch.linspace(-1.5, 2.5, 9, dtype=torch.float64)
    x = (a * (1 - 1 / (9 * a) + normal / (3 * a.sqrt())).clamp(min=0.05) ** 3).clamp(min=1e-3)
    wide = a.expand_as(x)
    slope = (torch.special.gammainc(wide + 1e-5, x) - torch.special.gammainc(wide - 1e-5, x)) / 2e-5
    expected = -slope / torch.distributions.Gamma(wide, 1.0).log_prob(x).exp()
    ours = standard_gamma_grad(*[tenure.tensor(value.tolist(), dtype=tenure.float64) for value in (wide, x)])
    assert torch.allclose(torch.tensor(ours.tolist(), dtype=torch.float64), expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.6), (2.0, 0.5), (5.0, 9.0)])
def test_gradients_of_beta_samples_have_the_right_means(a: float, b: float) -> None:
    """The mean of log x is digamma(a) - digamma(a + b), and the mean of x is a / (a + b)."""
    tenure.manual_seed(31)
    count = 200_000
    one = tenure.full((count,), a, dtype=tenure.float64, requires_grad=True)
    zero = tenure.full((count,), b, dtype=tenure.float64, requires_grad=True)
    trigamma = [torch.polygamma(1, torch.tensor(value, dtype=torch.float64)).item() for value in (a, a + b)]
    functions: list[tuple[Function, float, float]] = [
        (lambda x: x, b / (a + b) ** 2, -a / (a + b) ** 2),
        (lambda x: x.log(), trigamma[0] - trigamma[1], -trigamma[1]),
    ]
    for function, by_one, by_zero in functions:
        one.grad = zero.grad = None
        function(distributions.Beta(one, zero).rsample()).sum().backward()
        for leaf, expected in ((one, by_one), (zero, by_zero)):
            assert leaf.grad is not None
            error = leaf.grad.std().item() / math.sqrt(count)
            # The fitted formulas are accurate to about one in a thousand.
            assert abs(leaf.grad.mean().item() - expected) < 4 * error + 2e-3 * abs(expected)


def test_gradients_of_shares_have_the_right_means() -> None:
    tenure.manual_seed(32)
    count, given = 200_000, [0.4, 3.0, 1.2]
    concentration = tenure.tensor([given], dtype=tenure.float64).expand(count, 3).clone().requires_grad_()
    distributions.Dirichlet(concentration).rsample()[:, 0].sum().backward()
    gradients = concentration.grad
    assert gradients is not None
    total = sum(given)
    expected = [(total - given[0]) / total**2, -given[0] / total**2, -given[0] / total**2]
    for found, error, mean in zip(gradients.mean(0).tolist(), gradients.std(0).tolist(), expected, strict=True):
        assert abs(found - mean) < 4 * error / math.sqrt(count) + 2e-3 * abs(mean)


def test_narrow_floats_are_drawn_too() -> None:
    tenure.manual_seed(33)
    sample = distributions.Gamma(tenure.full((4000,), 3.0, dtype=tenure.bfloat16), 1.0).sample()
    assert sample.dtype is tenure.bfloat16
    assert abs(sample.float().mean().item() - 3) < 4 * math.sqrt(3 / 4000) + 0.01
    tiny = distributions.Gamma(tenure.full((100,), 1e-3), 1.0).sample()
    assert (tiny > 0).all()
    beta = distributions.Beta(tenure.full((1000,), 1e-3), tenure.full((1000,), 1e-3)).sample()
    assert beta.isfinite().all() and (beta > 0).all() and (beta < 1).all()


WRONG: list[tuple[str, Callable[[Any], Any]]] = [
    ("a negative scale", lambda lib: lib.distributions.Normal(lib.tensor([0.0, 1.0]), lib.tensor([1.0, -1.0]))),
    ("a NaN", lambda lib: lib.distributions.Normal(lib.tensor([math.nan]), lib.tensor([1.0]))),
    ("a probability above 1", lambda lib: lib.distributions.Bernoulli(lib.tensor([1.5]))),
    ("a negative probability", lambda lib: lib.distributions.Categorical(lib.tensor([1.5, -0.5]))),
    ("a concentration of 0", lambda lib: lib.distributions.Gamma(lib.tensor([0.0]), 1.0)),
    ("a negative value", lambda lib: lib.distributions.Gamma(1.0, 1.0).log_prob(lib.tensor([-1.5]))),
    ("a value that is no event", lambda lib: lib.distributions.Categorical(lib.ones(2)).log_prob(lib.tensor(2))),
    ("half an event", lambda lib: lib.distributions.Categorical(lib.ones(2)).log_prob(lib.tensor(0.5))),
    ("sizes", lambda lib: lib.distributions.Normal(lib.zeros(3), 1.0).log_prob(lib.zeros(2))),
    ("both parameters", lambda lib: lib.distributions.Bernoulli(0.5, 0.0)),
    ("no parameter", lambda lib: lib.distributions.Categorical()),
    ("no dimension", lambda lib: lib.distributions.Categorical(lib.tensor(1.0))),
    ("a value that is a number", lambda lib: lib.distributions.Normal(0.0, 1.0).log_prob(1.0)),
    ("an empty interval", lambda lib: lib.distributions.Uniform(1.0, 1.0)),
    ("vectors", lambda lib: lib.distributions.Dirichlet(lib.ones(3)).log_prob(lib.full((2,), 0.5))),
]


@pytest.mark.parametrize(("what", "program"), WRONG, ids=[what for what, _ in WRONG])
def test_mistakes_are_refused_as_pytorch_refuses_them(
    what: str, program: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Libraries of other tests in this process turn PyTorch's checks off.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with pytest.raises(ValueError) as expected:
        program(torch)
    with pytest.raises(ValueError) as found:
        program(tenure)
    first, ours = (str(info.value).splitlines()[0] for info in (expected, found))
    assert ours == re.sub(r"torch.Size\(\[(.*?)(, .*?)?\]\)", lambda size: f"({size[1]}{size[2] or ','})", first)


def test_a_value_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"within the support \(Interval\(lower_bound=0.0, upper_bound=1.0\)\)"):
        distributions.Beta(1.0, 1.0).log_prob(tenure.tensor([1.5]))


def test_checks_can_be_turned_off() -> None:
    assert distributions.Normal(0.0, -1.0, validate_args=False).scale.item() == -1
    try:
        distributions.Distribution.set_default_validate_args(False)
        assert distributions.Normal(0.0, -1.0).scale.item() == -1
    finally:
        distributions.Distribution.set_default_validate_args(True)
    with pytest.raises(ValueError, match="satisfy the constraint GreaterThan"):
        distributions.Normal(0.0, -1.0)


def test_independent_values_count_as_one() -> None:
    results = []
    for library in (tenure, torch):
        kinds = library.distributions
        loc = library.tensor([REAL, REAL], dtype=library.float64)
        ours = kinds.Independent(kinds.Normal(loc, 2.0), 1)
        other = kinds.Independent(kinds.Normal(loc + 1, 3.0), 1)
        assert tuple(ours.batch_shape) == (2,) and tuple(ours.event_shape) == (6,)
        assert tuple(ours.expand((4, 2)).sample((3,)).shape) == (3, 4, 2, 6)
        results.append([ours.log_prob(loc * 2), ours.entropy(), kinds.kl_divergence(ours, other), ours.variance])
    for mine, theirs in zip(*results, strict=True):
        assert close(mine, theirs)


def test_divergences_of_other_kinds_can_be_registered() -> None:
    class Twice(distributions.Normal):
        """A kind without a formula of its own takes its base's."""

    normal = distributions.Normal(0.0, 1.0)
    assert distributions.kl_divergence(Twice(0.0, 1.0), normal).item() == 0
    with pytest.raises(NotImplementedError, match="Normal and q type Gamma"):
        distributions.kl_divergence(normal, distributions.Gamma(1.0, 1.0))

    @distributions.register_kl(Twice, distributions.Normal)
    def seven(p: Any, q: Any) -> tenure.Tensor:
        return tenure.tensor(7.0)

    assert distributions.kl_divergence(Twice(0.0, 1.0), normal).item() == 7
