"""What a training run spends: privacy events, their Renyi curves, and the epsilon of a composition.

Every event is stated for the add-or-remove relation between datasets: one record more or less. Two accountants
answer the same question. ``rdp`` composes Renyi differential privacy (RDP) over a fixed grid of orders, as the papers
do; ``pld`` composes privacy loss distributions with ``dp_accounting`` and proves a smaller epsilon for the same noise.
Both give upper bounds.

Sources
-------
[Mir17] Mironov. Renyi differential privacy. CSF 2017.
[MTZ19] Mironov, Talwar, Zhang. Renyi differential privacy of the sampled Gaussian mechanism. arXiv:1908.10530.
[BS16]  Bun, Steinke. Concentrated differential privacy. TCC 2016.
[BBG20] Balle, Barthe, Gaboardi, Hsu, Sato. Hypothesis testing interpretations and Renyi DP. AISTATS 2020.
[CVZ00] Cohen, Rodriguez Villegas, Zagier. Convergence acceleration of alternating series. Exp. Math. 9, 2000.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Rational
from typing import Any

import numpy as np
from scipy.special import erfcx, gammaln, log_ndtr

ACCOUNTANTS = ("rdp", "pld")

#: The orders of the RDP accountant: 1.1, 1.2, ..., 10.9; 12, ..., 255; 256, 512, ..., 16384.
ORDERS: tuple[float, ...] = (
    *(x / 10 for x in range(11, 110)),
    *(float(x) for x in range(12, 256)),
    *(float(2**x) for x in range(8, 15)),
)


class AccountingError(Exception):
    """The accountant cannot answer; the message says why and what to do."""


def exact_fraction(sample_rate: Rational) -> Fraction:
    """``sample_rate`` as a Fraction in (0, 1]; TypeError for a float (not an exact rate), ValueError out of range."""
    if not isinstance(sample_rate, Rational):
        raise TypeError(f"sample_rate is {sample_rate!r}; a rate must be exact, so give a Fraction such as 1/200")
    rate = Fraction(sample_rate)
    if not 0 < rate <= 1:
        raise ValueError(f"sample_rate is {rate}; a sampling rate lies in (0, 1]")
    return rate


@dataclass(frozen=True)
class SampledGaussian:
    """A sum over a Poisson sample plus Gaussian noise, under add-or-remove.

    Each record enters with probability ``sample_rate`` (1: the plain Gaussian mechanism); the noise has standard
    deviation ``noise_multiplier`` times the l2 sensitivity of the sum. A multiplier of 0 protects nothing.
    """

    sample_rate: Fraction
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", exact_fraction(self.sample_rate))
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier is {self.noise_multiplier}; it must be finite and not negative")

    def to_json(self) -> dict[str, Any]:
        return {
            "event": "sampled_gaussian",
            "sample_rate": str(self.sample_rate),
            "noise_multiplier": self.noise_multiplier,
        }


@dataclass(frozen=True)
class PureDP:
    """A release with pure ``epsilon``-DP, for instance by Laplace noise; ``mechanism`` names it in records."""

    epsilon: float
    mechanism: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon is {self.epsilon}; a pure-DP release has a finite epsilon above 0")

    def to_json(self) -> dict[str, Any]:
        return {"event": "pure_dp", "epsilon": self.epsilon, "mechanism": self.mechanism}


@dataclass(frozen=True)
class Unbounded:
    """A read of private data without noise: no finite epsilon covers what depends on it."""

    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"event": "unbounded", "reason": self.reason}


Event = SampledGaussian | PureDP | Unbounded


def event_from_json(data: dict[str, Any]) -> Event:
    """The event that ``to_json`` wrote; ValueError for any other kind."""
    match data:
        case {"event": "sampled_gaussian", "sample_rate": rate, "noise_multiplier": multiplier}:
            return SampledGaussian(Fraction(rate), multiplier)
        case {"event": "pure_dp", "epsilon": eps, "mechanism": mechanism}:
            return PureDP(eps, mechanism)
        case {"event": "unbounded", "reason": reason}:
            return Unbounded(reason)
    raise ValueError(f"{data!r} is no privacy event; known are sampled_gaussian, pure_dp and unbounded")


def in_words(events: Iterable[tuple[Event, int]]) -> str:
    """What was charged, for people: "6250 sampled Gaussians at q = 2/25, sigma 1.1, and 250 at q = 2/25, sigma 4"."""
    gaussians: dict[Fraction, Counter[float]] = defaultdict(Counter)
    others: Counter[str] = Counter()
    for event, count in events:
        if isinstance(event, SampledGaussian):
            gaussians[event.sample_rate][event.noise_multiplier] += count
        else:
            others[f"pure {event.epsilon:g}-DP" if isinstance(event, PureDP) else event.reason] += count
    told = []
    for rate, sigmas in gaussians.items():
        if len(sigmas) > 3:
            told.append((sigmas.total(), f"q = {rate}, sigma from {min(sigmas):g} to {max(sigmas):g}"))
        else:
            told += [(count, f"q = {rate}, sigma {sigma:g}") for sigma, count in sigmas.items()]
    words = [f"{count} {'at' if i else 'sampled Gaussians at'} {what}" for i, (count, what) in enumerate(told)]
    return ", and ".join([*words, *(f"{count} times {what}" for what, count in others.items())]) or "nothing"


@dataclass(frozen=True)
class Spent:
    """An upper bound on epsilon at the delta asked for; ``order`` is the RDP order that gave it, None if none did."""

    epsilon: float
    order: float | None


def rdp(event: Event, orders: Sequence[float] = ORDERS) -> np.ndarray:
    """The RDP curve of one event.

    Args:
        event: what was released.
        orders: Renyi orders above 1.

    Returns:
        float64 array of the orders' length: the Renyi divergence bound at each order, in nats. ``inf`` where there is
        none. Curves of composed events add up [Mir17, Proposition 1].
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if not (alpha > 1).all():
        raise ValueError("RDP orders must all lie above 1")
    if isinstance(event, Unbounded):
        return np.full(alpha.shape, np.inf)
    if isinstance(event, PureDP):
        return _rdp_pure(event.epsilon, alpha)
    sigma = event.noise_multiplier
    if sigma == 0:
        return np.full(alpha.shape, np.inf)
    if event.sample_rate == 1:
        return alpha / (2 * sigma**2)
    log_moment = np.empty_like(alpha)
    whole = alpha == np.floor(alpha)
    log_q, log_not_q = math.log(event.sample_rate), math.log1p(-float(event.sample_rate))
    if whole.any():
        log_moment[whole] = _log_moment_whole(log_q, log_not_q, sigma, tuple(alpha[whole].tolist()))
    if not whole.all():
        log_moment[~whole] = _log_moment_fractional(log_q, log_not_q, sigma, tuple(alpha[~whole].tolist()))
    return np.maximum(log_moment, 0) / (alpha - 1)


def _rdp_pure(eps: float, alpha: np.ndarray) -> np.ndarray:
    """Pure DP as RDP: log(cosh((alpha - 1/2) eps) / cosh(eps / 2)) / (alpha - 1).

    It is the curve of randomized response, the worst eps-DP mechanism: [BS16, proof of Proposition 3.3], there
    written (sinh(alpha eps) - sinh((alpha - 1) eps)) / sinh(eps). The form below, 1 + 2 sinh(alpha eps / 2)
    sinh((alpha - 1) eps / 2) / cosh(eps / 2), neither overflows nor cancels.
    """

    def log_sinh(x: np.ndarray) -> np.ndarray:
        return x + np.log(-np.expm1(-2 * x)) - math.log(2)

    log_cosh = eps / 2 + math.log1p(math.exp(-eps)) - math.log(2)
    excess = math.log(2) + log_sinh(alpha * eps / 2) + log_sinh((alpha - 1) * eps / 2) - log_cosh
    return np.logaddexp(0, excess) / (alpha - 1)


@lru_cache(maxsize=8)
def _whole_terms(orders: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat log binomials of all orders, the index k of each term (2 <= k <= order), and where each order starts."""
    ends = [int(a) for a in orders]
    k = np.concatenate([np.arange(2, a + 1) for a in ends])
    log_factorial = gammaln(np.arange(max(ends) + 1) + 1.0)
    a = np.repeat(ends, [e - 1 for e in ends])
    starts = np.concatenate([[0], np.cumsum([e - 1 for e in ends])[:-1]])
    return log_factorial[a] - log_factorial[k] - log_factorial[a - k], k, starts


def _log_moment_whole(log_q: float, log_not_q: float, sigma: float, orders: tuple[float, ...]) -> np.ndarray:
    """log A at whole orders: A = sum_k C(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 sigma^2)) [MTZ19, 3.3].

    The binomial weights sum to 1 and the terms 0 and 1 carry exp(0), so A - 1 is the same sum from k = 2 with expm1:
    that keeps every digit when A is close to 1.
    """
    log_binomial, k, starts = _whole_terms(orders)
    j = np.arange(int(max(orders)) + 1)
    exponent = (j * j - j) / (2 * sigma**2)
    exponent[:2] = 1.0  # unused: the sum starts at 2
    factor = j * (log_q - log_not_q) + exponent + np.log(-np.expm1(-exponent))
    terms = log_binomial + factor[k]
    top = np.maximum.reduceat(terms, starts)
    terms -= np.repeat(top, np.diff(np.append(starts, len(terms))))
    log_sum = np.log(np.add.reduceat(np.exp(terms), starts)) + top
    return np.logaddexp(0, log_sum + np.asarray(orders) * log_not_q)


def _alternating_weights(n: int) -> np.ndarray:
    """Weights w with sum_k w_k a_k = sum_k (-1)^k a_k up to 2 / 5.8^n, relative [CVZ00, Algorithm 1]."""
    d = (3 + math.sqrt(8)) ** n
    d = (d + 1 / d) / 2
    weights, b, c = [], -1.0, -d
    for k in range(n):
        c = b - c
        weights.append(c / d)
        b *= (k + n) * (k - n) / ((k + 0.5) * (k + 1))
    return np.array(weights)


_TAIL = 24  # terms of the accelerated tail: error below 2 / 5.8^24 < 1e-18 of the tail
_TAIL_WEIGHTS = _alternating_weights(_TAIL)


@lru_cache(maxsize=8)
def _fractional_terms(orders: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Index row i and the weight of term i at each order: [orders, terms].

    C(a, i) is positive up to i = ceil(a) and alternates from there on, so from ceil(a) on the alternating weights
    apply; before it, the weight is the binomial.
    """
    alpha = np.array(orders)[:, None]
    first = np.ceil(alpha).astype(int)
    i = np.arange(int(first.max()) + _TAIL)
    ratios = np.concatenate([np.ones_like(alpha), (alpha - i[:-1]) / (i[:-1] + 1)], axis=1)
    binomial = np.cumprod(ratios, axis=1)
    position = i - first
    tail = _TAIL_WEIGHTS[np.clip(position, 0, _TAIL - 1)] * (position < _TAIL)
    return i, np.where(position < 0, binomial, np.abs(binomial) * tail)


def _log_moment_fractional(log_q: float, log_not_q: float, sigma: float, orders: tuple[float, ...]) -> np.ndarray:
    """log A at fractional orders by the erfc series of [MTZ19, 3.3].

    With z = sigma^2 log(1/q - 1) + 1/2 and x either (i - z) or (z - a + i), over sqrt(2) sigma, the terms of both
    series are C(a, i) (1 - q)^a exp(-z^2 / (2 sigma^2)) erfcx(x) / 2. erfcx is a Laplace transform and |C(a, i)|,
    i > a, a beta integral, both of positive measures, so the alternating tails are moment sequences on [0, 1]: the
    acceleration of [CVZ00] applies with its error bound. Summed plainly they fall only as i^-(a + 2).
    """
    i, weights = _fractional_terms(orders)
    alpha = np.array(orders)[:, None]
    z = sigma**2 * (log_not_q - log_q) + 0.5
    constant = alpha * log_not_q - (z / sigma) ** 2 / 2 - math.log(2)

    def log_terms(x: np.ndarray, plain: np.ndarray) -> np.ndarray:
        # erfcx would overflow far below 0; there erfc is close to 2 and the plain form is exact.
        scaled = constant + np.log(erfcx(np.maximum(x, 0) / (math.sqrt(2) * sigma)))
        return np.where(x >= 0, scaled, plain + log_ndtr(-x / sigma))

    j = alpha - i
    lower = log_terms(i - z + 0 * alpha, i * log_q + j * log_not_q + (i * i - i) / (2 * sigma**2))
    upper = log_terms(z - j, j * log_q + i * log_not_q + (j * j - j) / (2 * sigma**2))
    top = np.maximum(lower.max(axis=1), upper.max(axis=1))[:, None]
    total = (weights * (np.exp(lower - top) + np.exp(upper - top))).sum(axis=1)
    return np.log(total) + top[:, 0]


def epsilon(events: Iterable[tuple[Event, int]], delta: float, accountant: str = "rdp") -> Spent:
    """The epsilon that a composition of events spends at ``delta``, under add-or-remove.

    Args:
        events: pairs (event, how many times it was released); the releases may be adaptive.
        delta: in (0, 1); 0 is allowed when every event is pure.
        accountant: "rdp" or "pld".

    Returns:
        An upper bound: the composition is (epsilon, delta)-DP. RDP is converted by [BBG20, Theorem 21]. ``inf`` as
        soon as one event is unbounded. Purely epsilon-DP events also compose to the sum of their epsilons, which is
        used when it is smaller.

    Raises:
        AccountingError: the best order is the largest of ``ORDERS``, so that the bound isn't tight there.
        ValueError: ``delta`` or ``accountant`` is out of its range.
    """
    counted = [(event, count) for event, count in events if count > 0]
    _check_delta(delta, allow_zero=all(isinstance(event, PureDP) for event, _ in counted))
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant is {accountant!r}; known are {' and '.join(ACCOUNTANTS)}")
    if not counted:
        return Spent(0.0, None)
    if any(isinstance(e, Unbounded) or getattr(e, "noise_multiplier", 1) == 0 for e, _ in counted):
        return Spent(math.inf, None)
    pure = [event.epsilon * count for event, count in counted if isinstance(event, PureDP)]
    if len(pure) == len(counted):
        total = math.fsum(pure)
        if delta == 0:
            return Spent(total, None)
        best = epsilon_pld(counted, delta) if accountant == "pld" else epsilon_rdp(counted, delta)
        return best if best.epsilon < total and best.order != ORDERS[-1] else Spent(total, None)
    if accountant == "pld":
        return epsilon_pld(counted, delta)
    spent = epsilon_rdp(counted, delta)
    if spent.epsilon > 0 and spent.order == ORDERS[-1]:
        raise AccountingError(
            f"RDP gives epsilon <= {spent.epsilon:.3g}, but at the largest order ({ORDERS[-1]:g}), where the bound "
            "isn't tight: there is so much noise that the grid of orders ends too early. Use accountant=pld, or less "
            "noise (a smaller noise_multiplier, or a larger epsilon)."
        )
    return spent


def _check_delta(delta: float, allow_zero: bool = False) -> None:
    if not (0 < delta < 1 or (allow_zero and delta == 0)):
        raise ValueError(f"delta is {delta}; it must lie strictly between 0 and 1")


_curve = lru_cache(maxsize=64)(rdp)  # curves by epoch ask for the same few events hundreds of times


def epsilon_rdp(events: Sequence[tuple[Event, int]], delta: float) -> Spent:
    """As ``epsilon`` for RDP, also at the largest order: a valid bound there, but not a tight one."""
    curve = np.zeros(len(ORDERS))
    for event, count in events:
        curve += count * _curve(event)
    alpha = np.array(ORDERS)
    bounds = curve - (math.log(delta) + np.log(alpha)) / (alpha - 1) + np.log1p(-1 / alpha)
    best = int(np.argmin(bounds))
    if not bounds[best] < math.inf:
        return Spent(math.inf, None)
    return Spent(max(0.0, float(bounds[best])), ORDERS[best])


def epsilon_pld(events: Sequence[tuple[Event, int]], delta: float, interval: float = 1e-4) -> Spent:
    """As ``epsilon`` for PLDs on a grid of losses ``interval`` apart: pessimistic at any, tighter the finer it is."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=interval)
    for event, count in events:
        if isinstance(event, PureDP):
            one = pld.from_privacy_parameters(
                common.DifferentialPrivacyParameters(event.epsilon, 0.0), value_discretization_interval=interval
            )
        else:
            assert isinstance(event, SampledGaussian)
            sigma, rate = event.noise_multiplier, float(event.sample_rate)
            if rate == 1:  # repeated Gaussians are one Gaussian, without discretisation
                sigma, count = sigma / math.sqrt(count), 1
            one = pld.from_gaussian_mechanism(
                sigma, sampling_prob=rate, value_discretization_interval=interval, pessimistic_estimate=True
            )
        total = total.compose(one.self_compose(count))
    return Spent(float(total.get_epsilon_for_delta(delta)), None)


def merged_noise_multiplier(noise_multipliers: Iterable[float]) -> float:
    """The noise multiplier of several Gaussian releases of one and the same batch: (sum_i z_i^-2)^(-1/2).

    Why one event: fix which of the common records were drawn. Divide each release by its noise's standard deviation;
    together they are one vector with standard normal noise, and a record that joins the batch moves it by at most
    (sum_i z_i^-2)^(1/2) in l2. A later release may depend on earlier ones: Gaussian mechanisms compose adaptively
    to exactly this Gaussian (Dong, Roth, Su 2022, Corollary 3.3). Sampling comes on top once, because the batch is
    drawn once: the record is in it with probability q, so the pair (P, (1 - q) P + q Q) is dominated by that of the
    one sampled Gaussian (Zhu, Dong, Wang 2022, Theorem 11). Counting the releases as separate sampled events would
    be wrong: their inclusions are not independent.

    A multiplier of 0 (no noise) gives 0. Raises ValueError for an empty list or a negative multiplier.
    """
    values = [float(z) for z in noise_multipliers]
    if not values or not all(z >= 0 for z in values):
        raise ValueError(f"noise multipliers are {values}; give at least one, none negative")
    if len(values) == 1 or min(values) == 0:
        return min(values)
    return math.fsum(z**-2 for z in values) ** -0.5
