"""The Dirichlet mechanism ("End-to-End Differential Privacy in Training Deep Neural Network Classifiers", Algorithm 1), and
what its epsilon covers.

Each record of a Poisson batch has its class probabilities replaced by p~ ~ Dirichlet(r softmax(z) + alpha), and the network
takes a step on the mean of -log p~_y. The paper's account (Theorem 9) is of releasing the p~, with features protected and
labels public. The step is more than that: its gradient is (dp~/dz)(dz/dtheta), and dz/dtheta is formed at the private
features, so the model is no function of the p~ and post-processing does not carry the account to it. A feature that is zero
in every record but one moves its weight of the first layer if, and only if, that record was ever drawn. So the epsilon of the
account is recorded as claimed, and none is proved.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpsweep.mechanisms.arguments import choice, whole
from dpsweep.mechanisms.base import Account, Data, Guarantee, Mechanism, Plan, Schedule, State, Target
from dpsweep.privacy.accounting import Unbounded
from dpsweep.privacy.dirichlet import DirichletAccount, effective_scale
from dpsweep.privacy.sampling import Poisson

if TYPE_CHECKING:
    from torch import Tensor

    from dpsweep.privacy.ledger import Ledger

_REASON = (
    "the account covers the perturbed probabilities of a batch, and the gradient uses the private features besides them, so the "
    "released model is not post-processing of what was accounted"
)

_LEAST = 1e-300  # of a probability: its reciprocal is a number too


class Dirichlet(Mechanism):
    """Algorithm 1, with r* of equation 12.

    Args:
        alpha: the offset of the concentrations, at least 0.05.
        divisor: of the summed gradients: ``public`` (m0 = floor(q N0)) or ``realised``, the size of the drawn batch as in the
            paper, which tells that size.
        bound: the account's: see :class:`~dpsweep.privacy.dirichlet.DirichletAccount`.
        r_sample_rate, r_steps: r is calibrated for this schedule in place of the run's own, so that a shortened run shows what
            the full one would do. What is claimed then is what the account says of the run's own schedule with that r.

    Guarantee: none is proved for the released model; the method's own claim is kept apart.
    """

    uniforms_per_class = 1  # that a record's loss draws

    def __init__(self, alpha: float, divisor: str, bound: str, r_sample_rate: Any = None, r_steps: int | None = None) -> None:
        self.divisor = choice("divisor", divisor, "public", "realised")
        self.alpha, self.bound = float(alpha), bound
        self._borrowed = _schedule_of_r(r_sample_rate, r_steps)

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The largest r whose claim is within the target."""
        assert target is not None and target.epsilon is not None, "its YAML says that it takes a budget"
        return self._plan(schedule, target.epsilon, account.delta)

    def _plan(self, schedule: Schedule, epsilon: float, delta: float) -> Plan:
        rate, steps = self._borrowed or (schedule.sample_rate, schedule.steps)
        r = DirichletAccount(rate, steps, delta, self.alpha, self.bound).calibrate(epsilon)
        public = {"r": r, "alpha": self.alpha, "kappa": effective_scale(r, self.alpha), "classes": schedule.classes}
        return Plan(Poisson(schedule.sample_rate), (Unbounded(_REASON),), schedule.steps, public=public)

    def step(self, state: State, data: Data) -> None:
        """Draw a batch, perturb its probabilities, step on the mean gradient of the losses."""
        public = state.plan.public

        def losses(logits: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
            return self.losses(concentrations(logits, public["r"], self.alpha), labels, uniform)

        uniforms = self.uniforms_per_class * int(public["classes"])
        state.update(data.gradient(data.draw(), losses, uniforms, realised=self.divisor == "realised"))

    @staticmethod
    def losses(a: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
        """-log p~_y of p~ ~ Dirichlet(a): shape (n,), from a (n, K), labels (n,) and uniform numbers (n, K)."""
        return -sample_at(a, uniform).gather(1, labels.unsqueeze(1)).squeeze(1).log()

    def claim(self, plan: Plan, account: Account, target: Target) -> float | None:
        """The epsilon that the method's own analysis claims for this run: its target, or where r was calibrated for another
        schedule, what Theorem 9 says at the run's own (None where it says nothing)."""
        if self._borrowed is None:
            return target.epsilon
        assert isinstance(plan.sampler, Poisson)
        own = DirichletAccount(plan.sampler.sample_rate, plan.steps, account.delta, self.alpha, self.bound)
        claimed = own.epsilon(plan.public["r"])
        return claimed if claimed < float("inf") else None

    def guarantee(self, plan: Plan, ledger: Ledger, account: Account, target: Target | None) -> Guarantee:
        """The claim, and why it isn't proved for the model."""
        assert target is not None
        claimed = self.claim(plan, account, target)
        text = f"No privacy of the released model is proved: {_REASON}. {self._claim_in_words(plan, account, target)}."
        if claimed is None:
            return Guarantee(None, None, None, None, text, reason=_REASON)
        return Guarantee("replace_features", "features", claimed, None, text, reason=_REASON)

    def _claim_in_words(self, plan: Plan, account: Account, target: Target) -> str:
        claimed = self.claim(plan, account, target)
        what = "nothing" if claimed is None else (
            f"({claimed:.6g}, {account.delta:g})-differential privacy for replacing one record's features, with labels public"
        )  # fmt: skip
        if self._borrowed is None:
            return f"The method's own analysis claims {what}"
        rate, steps = self._borrowed
        return (
            f"Its r is that of epsilon {target.epsilon:g} at q = {rate}, T = {steps}, which is not this run's schedule; at its "
            f"own the method's analysis claims {what}"
        )

    def calibrated(self, plan: Plan, schedule: Schedule, account: Account, target: Target | None) -> str:
        """r, the claim, and that it is a claim."""
        public = plan.public
        found = f"r {public['r']:.6f} at alpha {self.alpha:g} (kappa {public['kappa']:.6f})"
        if target is None:
            found += "; no privacy"
        else:
            found += f". {self._claim_in_words(plan, account, target)}; nothing is proved for the released model"
        return f"{found} (q = {schedule.sample_rate}, T = {schedule.steps}, N0 = {schedule.reference_size})"


class DirichletMean(Dirichlet):
    """The same without the samples: steps on their expected loss, psi(A) - psi(a_y) (Theorem 10), whose gradient is the mean of
    the Dirichlet step's. No privacy of any kind: it shows what the samples' variance costs.

    Args:
        r_epsilon, r_delta: r is the one that `dirichlet` has at this budget; the others are as there.
    """

    uniforms_per_class = 0

    def __init__(self, r_epsilon: float, r_delta: float, **keys: Any) -> None:
        if not r_epsilon > 0:
            raise ValueError(f"mechanism.r_epsilon={r_epsilon}: a number above 0 is needed")
        if not 0 < r_delta < 1:
            raise ValueError(f"mechanism.r_delta={r_delta}: a number strictly between 0 and 1 is needed, such as 1e-5")
        super().__init__(**keys)
        self._epsilon, self._delta = r_epsilon, r_delta

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The r that `dirichlet` has."""
        return self._plan(schedule, self._epsilon, self._delta)

    @staticmethod
    def losses(a: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
        """E[-log p~_y]: shape (n,)."""
        import torch

        return torch.digamma(a.sum(1)) - torch.digamma(a.gather(1, labels.unsqueeze(1)).squeeze(1))

    def guarantee(self, plan: Plan, ledger: Ledger, account: Account, target: Target | None) -> Guarantee:
        """Nothing."""
        reason = "trained on the expected loss of the Dirichlet mechanism, without its samples"
        return Guarantee(None, None, None, None, f"No privacy: {reason}.", reason=reason)


def _schedule_of_r(sample_rate: Any, steps: int | None) -> tuple[Fraction, int] | None:
    """The schedule that r is calibrated for, from its two keys; None for the run's own."""
    if sample_rate is None and steps is None:
        return None
    if sample_rate is None or steps is None:
        key, other = ("r_steps", "r_sample_rate") if sample_rate is None else ("r_sample_rate", "r_steps")
        raise ValueError(f"mechanism.{key} belongs together with mechanism.{other}: give both, or neither")
    try:
        rate = Fraction(str(sample_rate))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not 0 < rate < 1:
        raise ValueError(f"mechanism.r_sample_rate={sample_rate}: a rate in (0, 1) is needed, such as 0.005 or 250/60000")
    return rate, whole("r_steps", steps)


def concentrations(logits: Tensor, r: float, alpha: float) -> Tensor:
    """r softmax(z) + alpha in float64, shape (n, K), from logits (n, K), or (n, 1) of two classes."""
    import torch

    logits = logits.double()
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    return r * torch.softmax(logits, dim=1) + alpha


def sample_at(a: Tensor, uniform: Tensor) -> Tensor:
    """p~ ~ Dirichlet(a), float64 (n, K), from independent uniform numbers in (0, 1) (n, K), differentiable by a.

    The value is that of Gamma(a_k, 1) variables at their quantiles, divided by their sum: numbers by record decide it, however a
    batch is cut. The derivative is the pathwise one of ``torch.distributions.Dirichlet.rsample`` (Jankowiak and Obermeyer 2018),
    a function of p~ and a alone.
    """
    import torch
    from scipy.special import gammaincinv

    class Sample(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, uniform: Tensor) -> Tensor:
            gammas = torch.from_numpy(gammaincinv(a.cpu().numpy(), uniform.cpu().numpy())).to(a.device)
            gammas.clamp_min_(_LEAST)
            values = (gammas / gammas.sum(1, keepdim=True)).clamp_(_LEAST, 1 - 2.0**-53)
            ctx.save_for_backward(a, values)
            return values

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
            a, values = ctx.saved_tensors
            paths = torch._dirichlet_grad(values, a, a.sum(1, keepdim=True).expand_as(a))
            return paths * (gradient - (values * gradient).sum(1, keepdim=True)), None

    return Sample.apply(a, uniform)  # type: ignore[no-untyped-call]
