"""Cosine similarity and losses of two inputs."""

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.similarity import cosine_embedding_loss, cosine_similarity, margin_ranking_loss
from psframework.errors import ArgumentError

rng = np.random.default_rng(5)
A, B = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
COSINE = (A * B).sum(1) / np.linalg.norm(A, axis=1) / np.linalg.norm(B, axis=1)


def test_values():
    np.testing.assert_allclose(cosine_similarity(A, B).data, COSINE)
    np.testing.assert_allclose(cosine_similarity(A, B[0], axis=-1).data[0], COSINE[0])
    signs = np.array([1, -1, -1])
    expected = np.where(signs > 0, 1 - COSINE, np.maximum(COSINE - 0.1, 0))
    np.testing.assert_allclose(cosine_embedding_loss(A, B, signs, 0.1).data, expected.mean())
    expected = np.maximum(0.5 - np.sign(B) * (A - B), 0)
    np.testing.assert_allclose(
        margin_ranking_loss(A, B, np.sign(B), 0.5, reduction="sum").data, expected.sum()
    )


@pytest.mark.filterwarnings("error")
def test_zero_vectors_have_finite_gradients():
    a = tensor(np.zeros((1, 4)), True)
    cosine_similarity(a, B[:1]).backward()
    assert np.isfinite(a.grad).all() and a.grad.any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cosine_similarity(A, B[:, :3]), "cosine_similarity: "),
        (lambda: cosine_similarity(A, B, axis=2), "cosine_similarity: "),
        (lambda: cosine_similarity(A.astype(int), B), "int64 is not floating"),
        (lambda: cosine_embedding_loss(A, B, np.ones(4)), r"1 or -1 for each of \(3,\), got shape \(4,\)"),
        (lambda: margin_ranking_loss(A, B[0], np.ones(4)), r"\(3, 4\) and \(4,\) differ in shape"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
