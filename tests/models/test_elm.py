"""The closed-form ELM: its features by NumPy, its columns, its scores for two classes."""

import numpy as np
import pytest
import torch

from dpsweep.metrics import evaluate
from dpsweep.models.base import probabilities
from dpsweep.models.elm import ELM


def test_features_are_those_of_numpys_generator_in_double_precision():
    model = ELM((1, 4, 3), 5, 42, 7)
    generator = np.random.default_rng(42)
    weight, bias = generator.standard_normal((12, 7)), generator.standard_normal(7)
    x = torch.rand(9, 1, 4, 3)
    expected = 1 / (1 + np.exp(-(x.flatten(1).double().numpy() @ weight + bias)))
    assert model.features(x).dtype == torch.float64
    np.testing.assert_allclose(model.features(x).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("classes", [2, 10])
def test_only_beta_is_trained_with_a_column_for_every_class(classes):
    model = ELM((6,), classes, 0, 10)
    assert [p.numel() for p in model.parameters() if p.requires_grad] == [10 * classes]
    assert model(torch.rand(3, 6)).shape == (3, classes)


def test_two_columns_give_the_softmax_score_of_class_1_and_a_tie_is_class_1():
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.5], [0.3, 0.3]])
    scores = probabilities(logits)
    torch.testing.assert_close(scores, 1 / (1 + torch.exp((logits[:, 0] - logits[:, 1]).double())))
    assert evaluate(scores.numpy(), np.array([1, 0, 1]))["accuracy"] == 1.0
