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

from typing import TYPE_CHECKING, Any

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


class Dirichlet(Mechanism):
    """Algorithm 1, with r* of equation 12.

    Args:
        alpha: the offset of the concentrations, at least 0.05.
        divisor: of the summed gradients: ``public`` (m0 = floor(q N0)) or ``realised``, the size of the drawn batch as in the
            paper, which tells that size.
        bound: the account's: see :class:`~dpsweep.privacy.dirichlet.DirichletAccount`.

    Guarantee: none is proved for the released model; the method's own claim is kept apart.
    """

    uniforms_per_class = 1  # that a record's loss draws

    def __init__(self, alpha: float, divisor: str, bound: str) -> None:
        if divisor not in ("public", "realised"):
            raise ValueError(f"mechanism.divisor={divisor}: public or realised is needed")
        self.alpha, self.divisor, self.bound = float(alpha), divisor, bound

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The largest r whose claim is within the target."""
        assert target is not None and target.epsilon is not None, "its YAML says that it takes a budget"
        counted = DirichletAccount(schedule.sample_rate, schedule.steps, account.delta, self.alpha, self.bound)
        r = counted.calibrate(target.epsilon)
        public = {"r": r, "alpha": self.alpha, "kappa": effective_scale(r, self.alpha), "claimed": counted.epsilon(r)}
        return Plan(Poisson(schedule.sample_rate), (Unbounded(_REASON),), schedule.steps, public=public)

    def step(self, state: State, data: Data) -> None:
        """Draw a batch, perturb its probabilities, step on the mean gradient of the losses."""
        public, realised = state.plan.public, self.divisor == "realised"
        uniforms = self.uniforms_per_class * state.memory["classes"]

        def losses(logits: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
            return self.losses(concentrations(logits, public["r"], public["alpha"]), labels, uniform)

        state.update(data.gradient(data.draw(), losses, uniforms, realised))

    def start(self, plan: Plan, model: Any, optimizer: Any) -> State:
        """The state before the first step; it knows the number of classes."""
        state = State(plan, model, optimizer)
        state.memory["classes"] = classes_of(model)
        return state

    @staticmethod
    def losses(a: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
        """-log p~_y of p~ ~ Dirichlet(a): shape (n,), from a (n, K), labels (n,) and uniform numbers (n, K)."""
        gammas = gamma_at(a, uniform)
        return gammas.sum(1).log() - gammas.gather(1, labels.unsqueeze(1)).squeeze(1).log()

    def guarantee(self, plan: Plan, ledger: Ledger, account: Account, target: Target | None) -> Guarantee:
        """The claim, and why it isn't proved for the model."""
        claimed = plan.public["claimed"]
        return Guarantee(
            "replace_features", "features", claimed, None,
            f"No privacy of the released model is proved: {_REASON}. The method's own analysis claims ({claimed:.6g}, "
            f"{account.delta:g})-differential privacy for replacing one record's features, with labels public.",
            reason=_REASON,
        )  # fmt: skip


class DirichletMean(Dirichlet):
    """The same without the samples: steps on their expected loss, psi(A) - psi(a_y) (Theorem 10), whose gradient is the mean of
    the Dirichlet step's. No privacy of any kind: it shows what the samples' variance costs."""

    uniforms_per_class = 0

    @staticmethod
    def losses(a: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
        """E[-log p~_y]: shape (n,)."""
        import torch

        return torch.digamma(a.sum(1)) - torch.digamma(a.gather(1, labels.unsqueeze(1)).squeeze(1))

    def guarantee(self, plan: Plan, ledger: Ledger, account: Account, target: Target | None) -> Guarantee:
        """Nothing."""
        reason = "trained on the expected loss of the Dirichlet mechanism, without its samples"
        return Guarantee(None, None, None, None, f"No privacy: {reason}.", reason=reason)


def classes_of(model: Any) -> int:
    """How many classes a model's last linear layer tells apart: one output is two classes."""
    import torch

    outputs = [layer.out_features for layer in model.modules() if isinstance(layer, torch.nn.Linear)][-1]
    return max(2, outputs)


def concentrations(logits: Tensor, r: float, alpha: float) -> Tensor:
    """r softmax(z) + alpha in float64, shape (n, K), from logits (n, K), or (n, 1) of two classes."""
    import torch

    logits = logits.double()
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    return r * torch.softmax(logits, dim=1) + alpha


def gamma_at(a: Tensor, uniform: Tensor) -> Tensor:
    """Gamma(a, 1) variables at their quantiles `uniform`, float64, any one shape, differentiable by a.

    The value is the inverse of the distribution function, so that a number by record decides it, however a batch is cut; its
    derivative by a at a fixed quantile is that of implicit reparameterisation (Figurnov, Mohamed, Mnih 2018).
    """
    import torch
    from scipy.special import gammaincinv

    class Quantile(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, uniform: Tensor) -> Tensor:
            values = torch.from_numpy(gammaincinv(a.cpu().numpy(), uniform.cpu().numpy())).to(a.device)
            values.clamp_min_(torch.finfo(values.dtype).tiny)
            ctx.save_for_backward(a, values)
            return values

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
            a, values = ctx.saved_tensors
            return gradient * torch._standard_gamma_grad(a, values), None

    return Quantile.apply(a, uniform)  # type: ignore[no-untyped-call]
