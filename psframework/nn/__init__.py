"""Building blocks of models, with torch's names: Module, Parameter, layers, losses, initial values."""

from psframework.nn import functional, init
from psframework.nn.hooks import HookHandle
from psframework.nn.init import manual_seed
from psframework.nn.layers.activation import GELU, LogSoftmax, ReLU, Sigmoid, Softmax, Tanh
from psframework.nn.layers.attention import MultiHeadAttention, MultiheadAttention
from psframework.nn.layers.container import (
    Identity,
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from psframework.nn.layers.conv import Conv2d
from psframework.nn.layers.dropout import Dropout
from psframework.nn.layers.linear import Linear
from psframework.nn.layers.norm import BatchNorm1d, BatchNorm2d
from psframework.nn.layers.pooling import AvgPool2d, Flatten, MaxPool2d
from psframework.nn.layers.positional import (
    LearnedPositionalEncoding,
    RotaryEmbedding,
    SinusoidalPositionalEncoding,
)
from psframework.nn.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from psframework.nn.losses import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "GRUCell",
    "HookHandle",
    "Identity",
    "L1Loss",
    "LSTMCell",
    "LearnedPositionalEncoding",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "RNNCell",
    "ReLU",
    "RotaryEmbedding",
    "Sequential",
    "Sigmoid",
    "SinusoidalPositionalEncoding",
    "Softmax",
    "Tanh",
    "functional",
    "init",
    "manual_seed",
]
