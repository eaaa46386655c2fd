"""Cryptographic randomness for sampling and noise.

A ``Randomness`` holds one 32-byte key. From it each purpose ("sampling", "noise", "dropout", ...) gets a stream of its
own: its key is HKDF-SHA256 of the key and the purpose (RFC 5869), its bits are AES-256 in counter mode. What one
purpose consumes, which may depend on the data, therefore never shifts another. ``secure`` keys come from the operating
system's entropy and exist in this process only; ``seeded`` keys repeat, for tests and debugging, and protect nothing:
who knows the seed can subtract the noise.

What the floating-point form of the noise does and does not withstand
--------------------------------------------------------------------
Differential privacy is proved for real-valued noise. Computed in float64, a noisy value can reveal the exact one
through the set of values that the arithmetic can reach (Mironov, CCS 2012; Jin, McMurtry, Rubinstein, Ohrimenko,
arXiv:2112.05307 for Gaussian noise). ``hardening="sum4"`` returns half the sum of four normals and throws the first
away, as Opacus' secure mode does: an attacker must then search 2^159 combinations instead of 2^53 (Holohan, Braghin,
arXiv:2107.10138, section 5.1). Not hardened: the rounding of the noisy sum, in particular to float32; the tail,
which ends at 9.3 standard deviations (probability 1e-20 a draw) instead of never; running time, which
depends on the drawn values (``below``, and the mathematical library); the memory of this process, which holds the key
and past noise; ``laplace``, which is the plain inverse.

Indistinguishability of AES-CTR from random bits degrades as (blocks)^2 / 2^129: 2^-49 after 16 TB of one stream.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

if TYPE_CHECKING:
    import torch

Hardening = Literal["none", "sum4"]

_BLOCK = 16  # bytes of an AES block
_CHUNK = 1 << 14  # values made at a time: the scratch arrays of this length stay in the L2 cache
_SEED_TAG = b"dpsweep seeded randomness, not private, v1:"


class Randomness:
    """The randomness of one run. Make it inside the process that uses it: ``secure()`` or ``seeded(seed)``.

    Not safe for use from several threads at once.
    """

    def __init__(self, key: bytes, *, secure: bool = False) -> None:
        if len(key) != 32:
            raise ValueError(f"the key has {len(key)} bytes; it must have 32")
        self._key = key
        self._pid = os.getpid()
        self._streams: dict[str, Stream] = {}
        self.is_secure = secure

    @classmethod
    def secure(cls) -> Randomness:
        """Keyed from the operating system's entropy; a process forked later rekeys itself at its first draw."""
        return cls(os.urandom(32), secure=True)

    @classmethod
    def seeded(cls, seed: int) -> Randomness:
        """Repeatable, for tests and debugging: the same seed gives the same bits on every machine."""
        return cls(hashlib.sha256(_SEED_TAG + str(int(seed)).encode()).digest())

    def stream(self, purpose: str) -> Stream:
        """The stream for ``purpose``: one and the same object at each call, so that no noise is ever drawn twice."""
        if purpose not in self._streams:
            self._streams[purpose] = Stream(self, purpose)
        return self._streams[purpose]

    def current_key(self) -> bytes:
        """The key of this process: a secure one inherited through fork is replaced, since the parent uses it too."""
        if self.is_secure and self._pid != os.getpid():
            self._key, self._pid = os.urandom(32), os.getpid()
        return self._key

    def state(self) -> dict[str, Any]:
        """Key and positions, JSON-able, to continue a seeded run from a checkpoint.

        Raises ValueError for secure randomness: a saved key would give away all noise, and with it the guarantee.
        """
        if self.is_secure:
            raise ValueError("secure randomness has no state to save: its key would give away the noise")
        return {"key": self._key.hex(), "positions": {p: s.position for p, s in self._streams.items()}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Randomness:
        """The seeded randomness that ``state()`` described, at the same positions."""
        randomness = cls(bytes.fromhex(state["key"]))
        for purpose, position in state["positions"].items():
            randomness.stream(purpose).seek(position)
        return randomness

    def __reduce__(self) -> Any:
        # pickle and copy come through here: a copied secure key would draw the same noise twice.
        return Randomness.from_state, (self.state(),)


class Stream:
    """Random numbers of one purpose. Get it from ``Randomness.stream``."""

    def __init__(self, randomness: Randomness, purpose: str) -> None:
        self._randomness = randomness
        self._purpose = purpose
        # CTR is an exclusive or with the keystream, so encrypting zeros gives the keystream itself; the encryptor
        # writes up to one block more than it is given.
        self._zeros = bytes(16 * _CHUNK)
        self._room = bytearray(16 * _CHUNK + _BLOCK - 1)
        self._scratch = np.empty(2 * _CHUNK)
        self._generator: torch.Generator | None = None  # of seeded noise
        self.seek(0)

    def seek(self, position: int) -> None:
        """Continue at ``position`` bytes from the stream's beginning."""
        self._pid = os.getpid()
        key = _hkdf(self._randomness.current_key(), self._purpose)
        counter = (position // _BLOCK).to_bytes(_BLOCK, "big")
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        self._encryptor.update(bytes(position % _BLOCK))
        self.position = position

    def _words(self, n: int) -> np.ndarray:
        """At most 2 * _CHUNK random uint64, little-endian, in a buffer that the next call overwrites."""
        if self._randomness.is_secure and self._pid != os.getpid():
            self.seek(0)  # after a fork: the randomness has another key here
        size = 8 * n
        self._encryptor.update_into(memoryview(self._zeros)[:size], self._room)
        self.position += size
        return np.frombuffer(self._room, dtype="<u8", count=n)

    def uint64(self, n: int) -> np.ndarray:
        """``n`` uniform integers in [0, 2^64): uint64 array [n]."""
        out = np.empty(n, dtype=np.uint64)
        for start in range(0, n, 2 * _CHUNK):
            part = out[start : start + 2 * _CHUNK]
            part[:] = self._words(len(part))
        return out

    def below(self, bound: int, n: int) -> np.ndarray:
        """``n`` integers uniform on 0 .. bound - 1, without bias: int64 array [n]; ``bound`` in [1, 2^63].

        A 64-bit draw above the last whole multiple of ``bound`` is rejected and drawn again.
        """
        if not 1 <= bound <= 1 << 63:
            raise ValueError(f"bound is {bound}; it must lie in [1, 2^63]")
        last = np.uint64((1 << 64) // bound * bound - 1)
        draws = self.uint64(n)
        while (rejected := np.flatnonzero(draws > last)).size:
            draws[rejected] = self.uint64(rejected.size)
        return (draws % np.uint64(bound)).astype(np.int64)

    def normal(self, n: int, hardening: Hardening = "none") -> np.ndarray:
        """``n`` independent standard normals, by the Box-Muller transform of 64-bit uniforms.

        Args:
            n: how many.
            hardening: "sum4" for the form that resists floating-point attacks (see the module), at four times the cost.

        Returns:
            float64 array [n]. The largest possible value is sqrt(126 log 2) = 9.35.
        """
        import torch

        return self._add_cipher_normal(torch.zeros(n, dtype=torch.float64), 1.0, hardening).numpy()

    def add_normal(self, values: torch.Tensor, deviation: float, hardening: Hardening = "none") -> torch.Tensor:
        """``values`` plus independent N(0, deviation^2).

        Secure noise is made of the cipher's bits, added in float64 and then rounded to the dtype of ``values``. Seeded
        noise, which hides nothing anyway, comes from PyTorch's own generator, seeded by the next word of the stream: it is
        about twice as fast. With ``sum4`` both take the first way.

        Args:
            values: shape (n,), any floating dtype, any device: the cipher's bits are made on the CPU and transformed where
                the values are.
            deviation: standard deviation of the noise.
            hardening: as for ``normal``.

        Returns:
            A new tensor like ``values``.
        """
        import torch

        if self._randomness.is_secure or hardening != "none":
            return self._add_cipher_normal(values, deviation, hardening)
        if self._generator is None or self._generator.device != values.device:
            self._generator = torch.Generator(values.device)
        self._generator.manual_seed(int(self.uint64(1)[0] >> np.uint64(1)))
        return torch.empty_like(values).normal_(0, deviation, generator=self._generator).add_(values)

    def _add_cipher_normal(self, values: torch.Tensor, deviation: float, hardening: Hardening) -> torch.Tensor:
        import torch

        if hardening not in ("none", "sum4"):
            raise ValueError(f"hardening is {hardening!r}; known are none and sum4")
        terms = 4 if hardening == "sum4" else 1
        if terms > 1:
            self._words(2)
        out = torch.empty_like(values)
        noise = torch.empty(4 * _CHUNK, dtype=torch.float64, device=values.device)
        for start in range(0, len(values), 2 * _CHUNK):
            part = values[start : start + 2 * _CHUNK]
            total, term = noise.split(2 * _CHUNK)
            total, term = total[: len(part)], term[: len(part)]
            self._fill_normal(total, deviation / terms**0.5)
            for _ in range(terms - 1):
                self._fill_normal(term, deviation / terms**0.5)
                total += term
            total += part
            out[start : start + len(part)] = total
        return out

    def _fill_normal(self, out: torch.Tensor, deviation: float) -> None:
        """Fill with at most 2 * _CHUNK normals of a standard deviation.

        PyTorch's vectorised logarithm, sine and cosine take about two thirds of the time and the cipher a quarter;
        NumPy's sine and cosine alone would take more than the whole.
        """
        import torch

        half = (len(out) + 1) // 2
        rest = len(out) - half
        words = self._words(2 * half)
        np.copyto(self._scratch[: 2 * half], words.view("<i8"), casting="unsafe")  # signed: unsigned would take ten times longer
        uniform = torch.from_numpy(self._scratch[: 2 * half]).to(out.device)
        radius, angle = uniform[:half], uniform[half:]
        radius.abs_().add_(1).mul_(2.0**-63)  # uniform on (0, 1] in steps of 2^-63: its logarithm is finite
        radius.log_().mul_(-2 * deviation**2).sqrt_()
        angle *= math.pi * 2.0**-63
        torch.mul(radius, torch.cos(angle, out=out[:half]), out=out[:half])
        torch.mul(radius[:rest], angle[:rest].sin_(), out=out[half:])

    def laplace(self, n: int) -> np.ndarray:
        """``n`` independent Laplace variables of scale 1 (variance 2): float64 array [n].

        The inverse distribution function: one bit for the sign, 63 for the exponential size, at most 63 log 2 = 43.7.
        """
        words = self.uint64(n)
        size = ((words >> np.uint64(1)).astype(np.float64) + 1) * 2.0**-63
        np.log(size, out=size)
        return np.where(words & np.uint64(1), size, -size)


def _hkdf(key: bytes, purpose: str) -> bytes:
    """HKDF-SHA256 of RFC 5869 with no salt and ``purpose`` as info: 32 bytes."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, b"dpsweep " + purpose.encode() + b"\x01", "sha256")
