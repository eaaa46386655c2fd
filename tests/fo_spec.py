"""The formulas of FO-DP-SGD's memory as the specification writes them, with norms taken of the vectors themselves."""

import math

import torch

DEFAULTS = {"beta": 0.9, "history": "outputs", "design": "fractional", "depth": 8, "alpha": 0.8, "lam": 0.05, "tau": 0.5,
            "gamma": 0.1, "kappa": 1e-3, "zeta": 1.0, "eps_num": 1e-8}  # fmt: skip


class SpecMemory:
    """s~_0, s~_1, ... in a list, and the trend m."""

    def __init__(self, **options):
        self.o = DEFAULTS | options
        self.past, self.m = [], 0.0

    def weights(self):
        """a_{t,j} over their sum, for j = 1 .. K_t - 1."""
        o, t = self.o, len(self.past)
        a = []
        size = float(torch.linalg.vector_norm(self.m)) if t else 0.0
        for j in range(1, min(o["depth"], t + 1)):
            nu = float(torch.linalg.vector_norm(self.past[t - j] - self.m)) / (max(size, o["kappa"]) + o["eps_num"])
            chi = size / (size + o["zeta"])
            a.append((j + 1) ** (o["alpha"] - 1) * math.exp(-(o["lam"] + chi * o["tau"] * nu) * j))
        return [value / sum(a) for value in a]

    def u(self):
        """The memory u_{t-1}; 0 where there is no lag."""
        return sum((weight * self.past[-j] for j, weight in enumerate(self.weights(), 1)), start=0.0)

    def remember(self, release):
        self.past.append(release.clone())
        self.m = (1 - self.o["gamma"]) * self.m + self.o["gamma"] * release
