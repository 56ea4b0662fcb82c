"""Losses."""

import numpy as np
from op_case import Case

from psframework.autograd import Tensor
from psframework.autograd.ops import cross_entropy as ce  # the function: the package re-exports it
from psframework.autograd.ops import likelihood, regression, similarity
from psframework.autograd.ops.nll import nll_loss

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
CHANCES = rng.uniform(0.2, 0.8, (2, 3))
LOGITS, LABELS = rng.standard_normal((4, 3)), np.array([0, 2, 1, 2])
IMAGES, PIXELS = rng.standard_normal((2, 3, 2, 2)), rng.integers(0, 3, (2, 2, 2))
SIGNS = np.array([[1, -1, 1], [-1, -1, 1]])


def same(x, value, place=...):
    """An array of one value where `x` lives, in its dtype, like `x[place]`."""
    data = x.data if isinstance(x, Tensor) else x
    return data[place] * 0 + value


def weighted(loss, **options):
    """The loss with class weights made where the logits are, in their dtype."""

    def call(x, labels):
        weight = same(x, 2, 0 if x.ndim == 2 else (0, slice(None), 0, 0))
        weight[0] = 0.5
        return loss(x, labels, weight, **options)

    return call


def elementwise(loss, name, **options):
    """The loss with a weight of each element."""
    return lambda x, y: loss(x, y, **{name: same(x, 1.5)}, **options)


CASES = [
    Case("cross_entropy", ce, [LOGITS], [LABELS]),
    Case("cross_entropy: sum", lambda x, t: ce(x, t, reduction="sum"), [LOGITS], [LABELS]),
    Case("cross_entropy: none, of pixels", lambda x, t: ce(x, t, reduction="none"), [IMAGES], [PIXELS]),
    Case("cross_entropy: one example", ce, [LOGITS[0]], [np.array(2)]),
    Case("cross_entropy: no example", lambda x, t: ce(x, t, reduction="sum"), [LOGITS[:0]], [LABELS[:0]]),
    Case("cross_entropy: weights", weighted(ce), [LOGITS], [LABELS]),
    Case("cross_entropy: ignored", lambda x, t: ce(x, t, ignore_index=2), [LOGITS], [LABELS]),
    Case("cross_entropy: smoothed", lambda x, t: ce(x, t, label_smoothing=0.2), [LOGITS], [LABELS]),
    Case(
        "cross_entropy: everything",
        weighted(ce, ignore_index=1, label_smoothing=0.2, reduction="none"),
        [IMAGES],
        [PIXELS],
    ),
    Case("cross_entropy: probabilities", ce, [X, CHANCES]),
    Case(
        "cross_entropy: probabilities, smoothed",
        lambda x, t: ce(x, t, same(x, 2, 0), label_smoothing=0.3, reduction="none"),
        [X, CHANCES],
    ),
    Case("nll_loss", nll_loss, [LOGITS], [LABELS]),
    Case("nll_loss: weights", weighted(nll_loss, ignore_index=1), [LOGITS], [LABELS]),
    Case("nll_loss: none, of pixels", lambda x, t: nll_loss(x, t, reduction="none"), [IMAGES], [PIXELS]),
    Case("nll_loss: one example", nll_loss, [LOGITS[0]], [np.array(2)]),
    Case("mse_loss", regression.mse_loss, [X, Y]),
    Case("mse_loss: none", lambda x, y: regression.mse_loss(x, y, reduction="none"), [X, Y]),
    Case("mse_loss: weight", elementwise(regression.mse_loss, "weight"), [X, Y]),
    Case("mse_loss: 0-d", regression.mse_loss, [X[0, :1].reshape(()), Y[0, :1].reshape(())]),
    Case("mse_loss: empty", lambda x, y: regression.mse_loss(x, y, reduction="sum"), [X[:0], Y[:0]]),
    Case("l1_loss", regression.l1_loss, [X, Y]),
    Case("l1_loss: none", lambda x, y: regression.l1_loss(x, y, reduction="none"), [X, Y]),
    Case("huber_loss", lambda x, y: regression.huber_loss(x, y, delta=0.7), [X, Y]),
    Case("huber_loss: weight", elementwise(regression.huber_loss, "weight"), [X, Y]),
    Case("smooth_l1_loss", lambda x, y: regression.smooth_l1_loss(x, y, beta=0.7), [X, Y]),
    Case("smooth_l1_loss: sum", lambda x, y: regression.smooth_l1_loss(x, y, reduction="sum"), [X, Y]),
    Case("binary_cross_entropy", likelihood.binary_cross_entropy, [CHANCES, CHANCES[::-1]]),
    Case(
        "binary_cross_entropy: weight",
        elementwise(likelihood.binary_cross_entropy, "weight", reduction="none"),
        [CHANCES, CHANCES[::-1]],
    ),
    Case("binary_cross_entropy_with_logits", likelihood.binary_cross_entropy_with_logits, [X, CHANCES]),
    Case(
        "binary_cross_entropy_with_logits: weight",
        elementwise(likelihood.binary_cross_entropy_with_logits, "weight", reduction="sum"),
        [X, CHANCES],
    ),
    Case(
        "binary_cross_entropy_with_logits: pos_weight",
        elementwise(likelihood.binary_cross_entropy_with_logits, "pos_weight", reduction="none"),
        [X, CHANCES],
    ),
    Case("kl_div", likelihood.kl_div, [X, CHANCES]),
    Case("kl_div: batchmean", lambda x, t: likelihood.kl_div(x, t, reduction="batchmean"), [X, CHANCES]),
    Case("kl_div: log_target", lambda x, t: likelihood.kl_div(x, t, log_target=True), [X, Y]),
    Case("cosine_similarity", similarity.cosine_similarity, [X, Y]),
    Case("cosine_similarity: broadcast", lambda x, y: similarity.cosine_similarity(x, y, -1), [X, Y[0]]),
    Case(
        "cosine_similarity: short vectors", lambda x, y: similarity.cosine_similarity(x, y, eps=2.0), [X, Y]
    ),
    Case(
        "cosine_embedding_loss",
        lambda x, y, t: similarity.cosine_embedding_loss(x, y, t, -0.9),
        [X, Y],
        [SIGNS[0, :2]],
    ),
    Case(
        "margin_ranking_loss", lambda x, y, t: similarity.margin_ranking_loss(x, y, t, 0.3), [X, Y], [SIGNS]
    ),
]
