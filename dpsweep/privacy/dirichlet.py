"""What the Dirichlet mechanism claims for its releases of perturbed probabilities ("End-to-End Differential Privacy in
Training Deep Neural Network Classifiers", section 3), and the r that meets a target.

This is an account of releasing the samples p~ ~ Dirichlet(r softmax(z) + alpha) of Poisson batches with labels public. It is no
account of a model that is trained on them: see ``mechanisms/dirichlet.py``. Even as an account of the samples it is the paper's
claim, not ours: the theorem that it takes its sampling from (Zhu and Wang 2019, Theorem 5) is stated for adding or removing a
record, and Lemma 8 compares replaced features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, polygamma

from dpsweep.errors import UsageError

MOST_ORDER = 1024  # of the integer orders that are tried
BOUNDS = {"published": math.log(3), "tight": 0.0}  # log of the factor of the terms from the third on


def release_rdp(order: float, r: float, alpha: float) -> float:
    """Lemma 8: one release is (order, this)-RDP, order r^2 psi'(alpha - (order-1) r), for 1 <= order < 1 + alpha/r; else inf.

    The bound is on the divergence between Dirichlet(r s + alpha) and Dirichlet(r s' + alpha) for any two probability vectors.
    """
    if not order < 1 + alpha / r:
        return math.inf
    return float(order * r * r * polygamma(1, alpha - (order - 1) * r))


@dataclass(frozen=True)
class DirichletAccount:
    """Theorem 9 (after Zhu and Wang 2019): T Poisson-sampled releases at rate q, in (epsilon, delta).

    Args:
        sample_rate: q, exact, below 1.
        steps: T.
        delta: in (0, 1).
        alpha: the offset of every concentration, above 0.
        bound: ``published``, whose terms from the third on count three times, or ``tight``, where they count once. Zhu and Wang
            prove the latter under a condition on the mechanism that nobody has shown for this one.
    """

    sample_rate: Fraction
    steps: int
    delta: float
    alpha: float
    bound: str = "published"

    def __post_init__(self) -> None:
        if self.bound not in BOUNDS:
            raise UsageError(f"mechanism.bound={self.bound}: published or tight is needed")
        if not 0.05 <= self.alpha < math.inf:
            raise UsageError(f"mechanism.alpha={self.alpha}: a number of at least 0.05 is needed")
        if not 0 < self.sample_rate < 1:
            raise UsageError(f"sample_rate={self.sample_rate}: the Dirichlet mechanism's account needs a rate below 1")

    @cached_property
    def _weights(self) -> np.ndarray:
        """log of C(lam, l) q^l (1-q)^(lam-l) at [lam, l], for lam and l from 0 to MOST_ORDER; -inf where l > lam."""
        q = float(self.sample_rate)
        lam = np.arange(MOST_ORDER + 1)[:, None]
        picked = np.arange(MOST_ORDER + 1)[None, :]
        with np.errstate(invalid="ignore"):
            binomial = gammaln(lam + 1) - gammaln(picked + 1) - gammaln(lam - picked + 1)
            weights = binomial + picked * math.log(q) + (lam - picked) * math.log1p(-q)
        return np.where(picked <= lam, weights, -np.inf)

    def by_order(self, r: float) -> np.ndarray:
        """The epsilon at each integer order from 2 on, as far as Lemma 8 reaches (at most MOST_ORDER); r = 0 is the limit."""
        most = MOST_ORDER if r == 0 else min(MOST_ORDER, math.ceil(1 + self.alpha / r) - 1)
        orders = np.arange(2, most + 1)
        if not len(orders):
            return np.empty(0)
        picked = np.arange(2, most + 1)
        # e(l) of one release times l - 1.
        costs = (picked - 1) * picked * r * r * polygamma(1, self.alpha - (picked - 1) * r) if r else np.zeros(len(picked))
        terms = self._weights[2 : most + 1, 2 : most + 1] + costs
        terms[:, 1:] += BOUNDS[self.bound]
        # The first term is P(none) + P(one): (1-q)^(lam-1) (lam q - q + 1). Its sum with the others is 1 + small, so the
        # logarithm is taken of what exceeds 1: P(0) + P(1) = 1 - P(at least 2).
        tail = logsumexp(self._weights[2 : most + 1, 2 : most + 1], axis=1)
        with np.errstate(over="ignore"):  # where the moment is that large, its logarithm is taken whole
            excess = np.exp(logsumexp(terms, axis=1)) - np.exp(tail)
        moments = np.where(np.isfinite(excess), np.log1p(np.maximum(excess, 0)), logsumexp(terms, axis=1))
        return (
            self.steps * moments / (orders - 1) + np.log1p(-1 / orders) - (np.log(orders) + math.log(self.delta)) / (orders - 1)
        )

    def epsilon(self, r: float) -> float:
        """The least over the orders; inf where Lemma 8 reaches none."""
        return float(np.min(self.by_order(r), initial=math.inf))

    def calibrate(self, target: float) -> float:
        """r*: the largest r in (0, alpha) with epsilon(r) <= target (equation 12), to a relative 1e-12 from below.

        Raises:
            UsageError: even r -> 0 costs more; the message names that floor.
        """
        floor = self.epsilon(0.0)
        if target <= floor:
            raise UsageError(
                f"epsilon={target:g} can't be met by the Dirichlet mechanism at q = {self.sample_rate}, T = {self.steps}, "
                f"delta = {self.delta:g}: its bound is {floor:.4g} even as r goes to 0. Choose a larger epsilon, a smaller "
                "sampling rate, fewer steps, or mechanism.bound=tight"
            )
        low, high = 1e-9 * self.alpha, self.alpha * (1 - 1e-12)
        if self.epsilon(high) <= target:
            return high

        def excess(r: float) -> float:
            return min(self.epsilon(r), 2 * target + 1) - target  # cut: near alpha it has no bound

        r, back = float(brentq(excess, low, high, xtol=1e-13 * self.alpha, rtol=1e-13)), 1e-13
        while self.epsilon(r) > target:  # the root's wrong side
            r, back = r * (1 - back), 2 * back
        return r


def effective_scale(r: float, alpha: float, true_class: float = 0.9) -> float:
    """kappa = r s psi'(alpha + r s) at the true class's probability s (Theorem 10): the expected gradient is kappa times that of
    the cross-entropy, so that kappa times the learning rate is the effective one."""
    return float(r * true_class * polygamma(1, alpha + r * true_class))
