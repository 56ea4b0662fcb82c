"""Recurrent layers and cells."""

from functools import partial

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(0)
X, H, C = rng.standard_normal((3, 2, 2)), rng.standard_normal((1, 2, 3)), rng.standard_normal((1, 2, 3))
DEEP = {"num_layers": 2, "bidirectional": True, "batch_first": True}


def flat(module, *inputs, **options):
    """Calls the module, and unpacks the states of an LSTM."""
    out, states = module(*inputs, **options)
    return (out, *states) if isinstance(states, tuple) else (out, states)


def padded(module, x, lengths):
    return flat(module, x, lengths=lengths)


CASES = [
    *[ModuleCase(kind, partial(getattr(nn, kind), 2, 3), [X], call=flat) for kind in ("RNN", "GRU", "LSTM")],
    ModuleCase("GRU: state", partial(nn.GRU, 2, 3), [X, H], call=flat),
    ModuleCase("LSTM: states", partial(nn.LSTM, 2, 3), [X, H, C], call=lambda m, x, *s: flat(m, x, s)),
    ModuleCase("LSTM: alone", partial(nn.LSTM, 2, 3, bias=False), [X[:, 0]], call=flat),
    ModuleCase("RNN: relu", partial(nn.RNN, 2, 3, nonlinearity="relu"), [X], call=flat),
    ModuleCase("GRU: deep, padded", partial(nn.GRU, 2, 2, **DEEP), [X], [np.array([1, 2, 2])], call=padded),
    ModuleCase("LSTM: dropout", partial(nn.LSTM, 2, 2, 2, dropout=0.5), [X], call=flat, random=True),
    ModuleCase("RNNCell", partial(nn.RNNCell, 2, 3), [X[0], H[0]]),
    ModuleCase("GRUCell", partial(nn.GRUCell, 2, 3), [X[0], H[0]]),
    ModuleCase("LSTMCell", partial(nn.LSTMCell, 2, 3), [X[0], H[0], C[0]], call=lambda m, x, *s: m(x, s)),
]
