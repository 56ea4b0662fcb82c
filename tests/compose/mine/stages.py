"""A model in two stages, and a function that no rule lets anybody call."""

import numpy as np

import psframework as psf
from psframework import nn


@psf.remote
class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 32, dtype=np.float64)

    def forward(self, x):
        return self.layer(x).tanh()


@psf.remote
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 10, dtype=np.float64)

    def forward(self, x):
        return self.layer(x)


@psf.remote
def unlisted():
    return 0
