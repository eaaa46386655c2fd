"""DP-ELM: one release of noisy sufficient statistics, then least squares (Ono et al., algorithm 1; DP-RVFL paper, 3.5)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpsweep.errors import UsageError
from dpsweep.mechanisms.arguments import choice
from dpsweep.mechanisms.base import Account, Data, Guarantee, Mechanism, Plan, Schedule, State, Statistic, Target, of_target
from dpsweep.privacy.accounting import PureDP, Unbounded
from dpsweep.privacy.sampling import Everything

if TYPE_CHECKING:
    import torch

    from dpsweep.models.elm import ELM
    from dpsweep.privacy.ledger import Ledger


@dataclass(frozen=True)
class Sensitivity:
    """By how much the released statistics can move, in l1 norm, if one record comes or goes, or is replaced by another."""

    add_remove: float
    replace_one: float


def sensitivity_of(release: str, hidden: int) -> Sensitivity:
    """The suprema over all records with features h in [0, 1]^L and a one-hot label.

    A record adds its products h_i h_j, and h itself in the column of its label.

    Add or remove, all L^2 products: with s = sum(h) <= L, the norm is s^2 + s <= L^2 + L. The triangle i <= j alone:
    (s^2 + |h|^2)/2 + s <= L (L + 1)/2 + L = L (L + 3)/2. Both are attained at h = (1, ..., 1).

    Replace (h, y) by (g, z): if y = z the columns move by sum |h_i - g_i|, else by sum (h_i + g_i), which is more. With
    a = max(h, g) and b = min(h, g) by entry, h_i + g_i = a_i + b_i and |h_i h_j - g_i g_j| <= a_i a_j - b_i b_j, since
    both products lie between b_i b_j and a_i a_j. With A = sum(a) <= L and B = sum(b), all products together give
    at most A^2 - B^2 + A + B <= L^2 + L + 1/4, attained at h = (1, ..., 1), sum(g) = 1/2. For the triangle,
    |b|^2 >= B^2/L gives at most L (L + 1)/2 + L + B - B^2 (L + 1)/(2 L) <= L (L + 3)/2 + L/(2 (L + 1)), attained at
    h = (1, ..., 1) and g_i = 1/(L + 1).

    A sigmoid lies inside (0, 1), so that for real numbers these are suprema, not maxima. A record that is left out, as one
    that is not finite, contributes zero: that is g = 0, which the bounds cover.
    """
    if release == "published":
        return Sensitivity(hidden * (hidden + 1), hidden * (hidden + 1) + 1 / 4)
    return Sensitivity(hidden * (hidden + 3) / 2, hidden * (hidden + 3) / 2 + hidden / (2 * (hidden + 1)))


class LaplaceELM(Mechanism):
    """Noisy H'H and H'Y, where H are the hidden features and Y the one-hot labels of all training records; then a solve.

    Args:
        release: ``published``: Laplace noise of scale L (L + 2)/epsilon in each of the L^2 entries of H'H and each of the
            L K entries of H'Y. ``triangle``: H'H is symmetric, so only its upper triangle is released (and mirrored), which
            moves by about half as much; the scale is the sensitivity over epsilon, the larger one of the two relations.

    Guarantee: pure epsilon-DP (delta 0) both for adding or removing a record and for replacing one, by Laplace noise on a
    sum of bounded l1 sensitivity (see :func:`sensitivity_of`); solving is post-processing. Without a budget the same
    statistics are used without noise.
    """

    def __init__(self, release: str) -> None:
        self.release = choice("release", release, "published", "triangle")

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """One step over all records. The epsilon of the plan is what the noise proves for both relations: the published
        scale is larger than needed, so that it is below the target there.

        Raises:
            UsageError: the model has no width of at least 1, or the budget is so small that the noise has no finite scale.
        """
        hidden = schedule.model["hidden"]
        if hidden < 1:
            raise UsageError(f"model.hidden={hidden}: an integer of at least 1 is needed")
        if target is None or target.epsilon is None:
            return Plan(Everything(), (Unbounded("solved without noise"),), steps=1)
        sensitivity = sensitivity_of(self.release, hidden)
        scale = (hidden * (hidden + 2) if self.release == "published" else sensitivity.replace_one) / target.epsilon
        if not scale < math.inf:
            raise UsageError(
                f"epsilon={target.epsilon:g}: the Laplace noise for this budget has no finite scale. Choose a larger epsilon"
            )
        while (epsilon := 1 / (scale / sensitivity.replace_one)) > target.epsilon:  # by rounding
            scale = math.nextafter(scale, math.inf)
        public = {"laplace_scale": scale, **{f"sensitivity_{name}": value for name, value in asdict(sensitivity).items()}}
        return Plan(Everything(), (PureDP(epsilon, "laplace"),), steps=1, public=public)

    def calibrated(self, plan: Plan, schedule: Schedule, account: Account, target: Target | None) -> str | None:
        """The scale of the noise and what it proves; None without noise."""
        if "laplace_scale" not in plan.public:
            return None
        return (
            f"Laplace scale {plan.public['laplace_scale']:.6f} gives epsilon {plan.epsilon(account):.6f}{of_target(target)} at "
            f"delta {account.delta:g} ({schedule.model['name']}, q = 1, T = {plan.steps})"
        )

    def step(self, state: State, data: Data) -> None:
        """Sum the statistics of all records, release them, solve the noisy system for beta."""
        import torch

        model: ELM = state.model  # type: ignore[assignment]
        classes, hidden = model.beta.weight.shape
        everyone = torch.ones(hidden, hidden, device=state.theta.device)
        rows, columns = (everyone.triu() if self.release == "triangle" else everyone).nonzero(as_tuple=True)
        sensitivity = sensitivity_of(self.release, hidden)
        added, moved = sensitivity.add_remove, sensitivity.replace_one
        total = data.statistics(data.draw(), contribution(model, rows, columns), added, moved)
        noisy = data.release(total, moved, state.plan.public.get("laplace_scale", 0.0) / moved)
        gram = noisy.new_empty(hidden, hidden)
        gram[columns, rows] = noisy[: len(rows)]  # mirrors the triangle; all entries have their own place below
        gram[rows, columns] = noisy[: len(rows)]
        state.theta.copy_(solve(gram, noisy[len(rows) :].view(hidden, classes)).t().reshape(-1))

    def guarantee(self, plan: Plan, ledger: Ledger, account: Account, target: Target | None) -> Guarantee:
        """Pure epsilon under both relations; without noise nothing."""
        if target is None or target.epsilon is None:
            return super().guarantee(plan, ledger, account, target)
        scale, bound = plan.public["laplace_scale"], plan.epsilon(account)
        added, replaced = (plan.public[f"sensitivity_{relation}"] / scale for relation in ("add_remove", "replace_one"))
        return Guarantee(
            "add_remove and replace_one", "record", target.epsilon, bound,
            f"({bound:.6g}, 0)-differential privacy of the released model for adding or removing any one training record, and "
            f"for replacing any one, by Laplace noise of scale {scale:g} on sums over all records, of which the output weights "
            f"are a function. At this scale adding or removing costs at most {added:.6g} and replacing at most "
            f"{replaced:.6g}; the target was {target.epsilon:g}. That is proved for noise in real numbers: it is computed in "
            "float64, and an attack on its last digits (Mironov 2012) is not excluded. The record beside the model, other "
            "models of the same data and the test metrics are not covered.",
        )  # fmt: skip


def contribution(model: ELM, rows: torch.Tensor, columns: torch.Tensor) -> Statistic:
    """What one record adds to the statistics: the products h_i h_j at (rows, columns), then h y', row by row (L K)."""
    import torch

    labels = torch.arange(model.beta.out_features, device=rows.device)

    def of(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        h = model.features(x.unsqueeze(0)).squeeze(0).double()
        return torch.cat([h[rows] * h[columns], torch.outer(h, (labels == label).double()).flatten()])

    return of


def solve(gram: torch.Tensor, cross: torch.Tensor) -> torch.Tensor:
    """beta (L, K) with gram (L, L) beta = cross (L, K) in float64; by the pseudo-inverse if, and only if, gram is singular."""
    import torch

    beta, failed = torch.linalg.solve_ex(gram, cross)
    return torch.linalg.pinv(gram) @ cross if bool(failed) else beta
