import copy
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy import stats

from dpsweep.privacy import noise
from dpsweep.privacy.noise import Randomness

N = 200_000


def stream(seed=7, purpose="noise"):
    return Randomness.seeded(seed).stream(purpose)


@pytest.mark.parametrize("hardening", ["none", "sum4"])
def test_normals_follow_the_normal_law(hardening):
    x = stream().normal(N, hardening=hardening)
    assert x.dtype == np.float64 and x.shape == (N,)
    assert abs(x.mean()) < 4 / math.sqrt(N) and abs(x.var() - 1) < 4 * math.sqrt(2 / N)
    assert abs((x**3).mean()) < 4 * math.sqrt(15 / N) and abs((x**4).mean() - 3) < 4 * math.sqrt(96 / N)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    for z in (2.0, 3.0, 3.7):  # tails on either side
        expected = N * stats.norm.sf(z)
        for count in ((x > z).sum(), (x < -z).sum()):
            assert abs(count - expected) < 4.5 * math.sqrt(expected)


def test_neighbouring_normals_are_independent():
    # Cosine and sine of one angle land half a chunk apart.
    x = stream().normal(2 * noise._CHUNK)
    half = len(x) // 2
    for a, b in ((x[:half], x[half:]), (x[:-1], x[1:]), (x[:half] ** 2, x[half:] ** 2)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(half)
    assert stats.kstest(np.arctan2(x[half:], x[:half]) / math.pi, "uniform", (-1, 2)).pvalue > 1e-3


def test_extreme_uniforms_give_finite_tails(monkeypatch):
    s = stream()
    for word, radius in ((0, math.sqrt(126 * math.log(2))), (2**63, 0.0)):
        monkeypatch.setattr(s, "_words", lambda n, word=word: np.full(n, word, dtype="<u8"))
        assert np.hypot(*s.normal(2)) == pytest.approx(radius, abs=1e-12)
    for word, value in ((0, -63 * math.log(2)), (1, 63 * -math.log(2)), (2**64 - 1, 0.0), (2**64 - 2, 0.0)):
        monkeypatch.setattr(s, "_words", lambda n, word=word: np.full(n, word, dtype="<u8"))
        assert abs(s.laplace(1)[0]) == pytest.approx(abs(value), abs=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 2 * noise._CHUNK + 1])
def test_any_number_of_normals_fills_its_array(n):
    out = stream().normal(n)
    assert out.shape == (n,) and np.isfinite(out).all() and len(np.unique(out)) == n


def test_hardened_noise_is_half_the_sum_of_four_after_one_is_thrown_away():
    plain, hardened = stream(), stream()
    plain.normal(2)  # the hardened form throws the first pair away
    expected = sum(plain.normal(10) for _ in range(4)) / 2
    np.testing.assert_allclose(hardened.normal(10, hardening="sum4"), expected, rtol=1e-14)


def test_wrong_arguments_are_refused():
    s = stream()
    with pytest.raises(ValueError, match="hardening"):
        s.normal(1, hardening="full")
    for bound in (0, -1, 2**63 + 1):
        with pytest.raises(ValueError, match="bound"):
            s.below(bound, 1)
    with pytest.raises(ValueError, match="32"):
        Randomness(b"short")


def test_laplace_follows_its_law():
    x = stream().laplace(N)
    assert stats.kstest(x, "laplace").pvalue > 1e-3
    assert abs(x.mean()) < 4 * math.sqrt(2 / N) and abs(x.var() - 2) < 4 * math.sqrt(20 / N)
    assert abs((x > 0).mean() - 0.5) < 2 / math.sqrt(N)
    expected = N * math.exp(-7) / 2
    for count in ((x > 7).sum(), (x < -7).sum()):
        assert abs(count - expected) < 4.5 * math.sqrt(expected)


def test_integers_below_a_bound_are_uniform():
    for bound in (1, 2, 7, 1000):
        counts = np.bincount(stream(bound).below(bound, 50_000), minlength=bound)
        assert len(counts) == bound and (bound == 1 or stats.chisquare(counts).pvalue > 1e-3)


def test_integers_below_a_large_bound_are_unbiased():
    # Without rejection, 2^64 mod 3 * 2^61 makes the lower two thirds half as likely again as the upper third.
    bound = 3 << 61
    x = stream().below(bound, 20_000)
    assert x.dtype == np.int64 and x.min() >= 0 and x.max() < bound
    assert abs((x < bound // 3).mean() - 1 / 3) < 4 / math.sqrt(len(x))
    assert stream().below(1 << 63, 5).min() >= 0


def test_bits_are_aes_ctr_under_a_key_by_hkdf():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    derived = HKDF(hashes.SHA256(), 32, None, b"dpsweep noise").derive(key)
    expected = Cipher(algorithms.AES(derived), modes.CTR(bytes(16))).encryptor().update(bytes(800))
    s = Randomness(key).stream("noise")
    assert (s.uint64(33).tobytes() + s.uint64(67).tobytes()) == expected


def test_streams_of_different_purposes_and_seeds_differ_and_do_not_shift_each_other():
    one, other = Randomness.seeded(1), Randomness.seeded(1)
    other.stream("sampling").uint64(1000)
    a, b = one.stream("noise").normal(N), one.stream("sampling").normal(N)
    np.testing.assert_array_equal(a, other.stream("noise").normal(N))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(N)
    assert abs(np.corrcoef(a, Randomness.seeded(2).stream("noise").normal(N))[0, 1]) < 4 / math.sqrt(N)
    secure = [Randomness.secure().stream("noise").uint64(4).tobytes() for _ in range(2)]
    assert secure[0] != secure[1]


def test_asking_twice_for_a_stream_never_repeats_its_numbers():
    randomness = Randomness.seeded(1)
    assert randomness.stream("noise").uint64(4).tobytes() != randomness.stream("noise").uint64(4).tobytes()


def test_a_seeded_state_continues_where_it_was():
    randomness = Randomness.seeded(3)
    randomness.stream("noise").normal(5, hardening="sum4")
    randomness.stream("sampling").uint64(1)  # half a cipher block
    copies = [Randomness.from_state(randomness.state()), pickle.loads(pickle.dumps(randomness)), copy.copy(randomness)]
    for purpose in ("noise", "sampling", "dropout"):
        following = randomness.stream(purpose).uint64(5).tobytes()
        assert [restored.stream(purpose).uint64(5).tobytes() for restored in copies] == [following] * 3


@pytest.mark.parametrize("leak", [Randomness.state, pickle.dumps, copy.copy, copy.deepcopy])
def test_secure_randomness_refuses_to_be_saved_or_copied(leak):
    with pytest.raises(ValueError, match="secure randomness has no state"):
        leak(Randomness.secure())


FORKS = """
import os, sys
from dpsweep.privacy.noise import Randomness
kind, early = sys.argv[1], sys.argv[2] == "early"
randomness = Randomness.secure() if kind == "secure" else Randomness.seeded(1)
stream = randomness.stream("noise") if early else None
if early:
    stream.uint64(3)
for _ in range(2):
    if os.fork() == 0:
        stream = stream or randomness.stream("noise")
        os.write(1, (stream.uint64(4).tobytes().hex() + "\\n").encode())
        os._exit(0)
    os.wait()
print((stream or randomness.stream("noise")).uint64(4).tobytes().hex())
"""


@pytest.mark.parametrize("early", ["early", "late"])
@pytest.mark.parametrize("kind,distinct", [("secure", 3), ("seeded", 1)])
def test_forked_processes_get_streams_of_their_own_if_secure(kind, distinct, early):
    root = Path(noise.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", FORKS, kind, early], cwd=root, capture_output=True, text=True, check=True)
    lines = run.stdout.split()
    assert len(lines) == 3 and len(set(lines)) == distinct


def test_a_pid_change_rekeys_secure_randomness_only(monkeypatch):
    secure, seeded = Randomness.secure(), Randomness.seeded(1)
    keys = secure.current_key(), seeded.current_key()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert secure.current_key() != keys[0] and seeded.current_key() == keys[1]


def test_noise_is_added_in_float64_and_rounded_once():
    import torch

    values = torch.linspace(-1, 1, 50_001)
    first, second = (Randomness(bytes(32), secure=True).stream("noise") for _ in range(2))
    exact = values.double() + 0.3 * torch.from_numpy(first.normal(len(values)))
    torch.testing.assert_close(second.add_normal(values, 0.3), exact.float(), rtol=1e-7, atol=0)
    assert values[0] == -1


def test_seeded_noise_follows_the_normal_law_and_repeats():
    import torch

    values = torch.full((N,), 5.0)
    s = stream()
    first, second = s.add_normal(values, 2.0), s.add_normal(values, 2.0)
    assert torch.equal(stream().add_normal(values, 2.0), first) and not torch.equal(first, second)
    for noisy in (first, second):
        assert stats.kstest(noisy.numpy(), "norm", (5, 2)).pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(N)
