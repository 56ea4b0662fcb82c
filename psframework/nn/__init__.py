"""Building blocks of models, with torch's names: Module, Parameter, layers, losses, initial values."""

from psframework.nn import functional, init
from psframework.nn.hooks import HookHandle
from psframework.nn.init import manual_seed
from psframework.nn.layers.activation import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from psframework.nn.layers.attention import MultiHeadAttention, MultiheadAttention
from psframework.nn.layers.batch_norm import BatchNorm1d, BatchNorm2d
from psframework.nn.layers.container import (
    Identity,
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from psframework.nn.layers.conv import Conv1d, Conv2d
from psframework.nn.layers.conv_transpose import ConvTranspose1d, ConvTranspose2d
from psframework.nn.layers.dropout import Dropout
from psframework.nn.layers.embedding import Embedding, EmbeddingBag
from psframework.nn.layers.group_norm import GroupNorm, InstanceNorm1d, InstanceNorm2d
from psframework.nn.layers.layer_norm import LayerNorm, RMSNorm
from psframework.nn.layers.linear import Linear
from psframework.nn.layers.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    Flatten,
    MaxPool1d,
    MaxPool2d,
)
from psframework.nn.layers.positional import (
    LearnedPositionalEncoding,
    RotaryEmbedding,
    SinusoidalPositionalEncoding,
)
from psframework.nn.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from psframework.nn.layers.transformer import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from psframework.nn.losses import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HookHandle",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "LearnedPositionalEncoding",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "RotaryEmbedding",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SinusoidalPositionalEncoding",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "functional",
    "init",
    "manual_seed",
]
