"""Operations on tensors, under NumPy's names: `psf.ops.where(x > 0, x, psf.ops.exp(x))`.

Each takes Tensors, and arrays or numbers as constants, and records the graph.
"""

from typing import TYPE_CHECKING

# A function may bear the name of its module (`softmax`): inside the package, import from the modules.
from psframework.autograd import spelling as _spelling
from psframework.autograd.ops.activation import gelu, relu, sigmoid, tanh
from psframework.autograd.ops.adaptive import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
)
from psframework.autograd.ops.arithmetic import (
    add,
    clip,
    divide,
    maximum,
    minimum,
    multiply,
    power,
    subtract,
    where,
)
from psframework.autograd.ops.attention import attention_with_weights, scaled_dot_product_attention
from psframework.autograd.ops.batch_norm import batch_norm
from psframework.autograd.ops.bessel import i0
from psframework.autograd.ops.compare import (
    all,
    any,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    count_nonzero,
    equal,
    greater,
    greater_equal,
    invert,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from psframework.autograd.ops.conv import conv1d, conv2d
from psframework.autograd.ops.conv_transpose import conv_transpose1d, conv_transpose2d
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.dropout import dropout
from psframework.autograd.ops.einsum import dot, einsum, inner, kron, outer, tensordot, vdot
from psframework.autograd.ops.elementwise import (
    absolute,
    astype,
    cbrt,
    clone,
    erf,
    exp,
    exp2,
    expm1,
    fabs,
    log,
    log1p,
    log2,
    log10,
    negative,
    positive,
    reciprocal,
    sqrt,
    square,
)
from psframework.autograd.ops.embedding import embedding
from psframework.autograd.ops.embedding_bag import embedding_bag
from psframework.autograd.ops.gates import (
    celu,
    elu,
    glu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    softplus,
    softsign,
)
from psframework.autograd.ops.gather import (
    gather,
    index_add,
    index_select,
    masked_fill,
    masked_select,
    nonzero,
    put_along_axis,
    scatter,
    scatter_add,
    take,
    take_along_axis,
)
from psframework.autograd.ops.group_norm import group_norm, instance_norm
from psframework.autograd.ops.gru import gru
from psframework.autograd.ops.interpolate import interpolate
from psframework.autograd.ops.join import (
    array_split,
    chunk,
    concatenate,
    dstack,
    hstack,
    split,
    stack,
    unbind,
    vstack,
)
from psframework.autograd.ops.layer_norm import layer_norm, rms_norm
from psframework.autograd.ops.likelihood import binary_cross_entropy, binary_cross_entropy_with_logits, kl_div
from psframework.autograd.ops.lstm import lstm
from psframework.autograd.ops.matmul import linear, matmul
from psframework.autograd.ops.move import (
    diag,
    diagonal,
    flip,
    fliplr,
    flipud,
    repeat,
    roll,
    rot90,
    tile,
    trace,
    tril,
    triu,
)
from psframework.autograd.ops.nll import nll_loss
from psframework.autograd.ops.order import argsort, median, sort, topk
from psframework.autograd.ops.pad import pad
from psframework.autograd.ops.pairs import (
    copysign,
    float_power,
    floor_divide,
    fmax,
    fmin,
    fmod,
    heaviside,
    ldexp,
    logaddexp,
    logaddexp2,
    remainder,
)
from psframework.autograd.ops.parts import divmod, frexp, modf
from psframework.autograd.ops.pool import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from psframework.autograd.ops.reduce import argmax, argmin, average, max, mean, min, ptp, std, sum, var
from psframework.autograd.ops.regression import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from psframework.autograd.ops.rnn import rnn
from psframework.autograd.ops.rotary import rotate_pairs
from psframework.autograd.ops.rounding import (
    ceil,
    floor,
    isfinite,
    isinf,
    isnan,
    nan_to_num,
    rint,
    round,
    sign,
    trunc,
)
from psframework.autograd.ops.scan import cumprod, cumsum, diff, prod
from psframework.autograd.ops.shape import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    broadcast_to,
    detach,
    expand,
    expand_dims,
    flatten,
    moveaxis,
    ravel,
    reshape,
    squeeze,
    swapaxes,
    transpose,
    unsqueeze,
)
from psframework.autograd.ops.similarity import cosine_embedding_loss, cosine_similarity, margin_ranking_loss
from psframework.autograd.ops.softmax import log_softmax, logsumexp, softmax
from psframework.autograd.ops.transfer import to
from psframework.autograd.ops.trigonometry import (
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    cos,
    cosh,
    deg2rad,
    hypot,
    rad2deg,
    sin,
    sinc,
    sinh,
    tan,
)
from psframework.autograd.ops.vector_norm import norm

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _spelling.missing_operation(name)


# NumPy's second names.
abs = absolute
acos, acosh, asin, asinh = arccos, arccosh, arcsin, arcsinh
amax = max
amin = min
atan, atan2, atanh = arctan, arctan2, arctanh
concat = concatenate
degrees = rad2deg
fix = trunc
mod = remainder
permute_dims = transpose
pow = power
radians = deg2rad
true_divide = divide

__all__ = [
    "abs", "absolute", "acos", "acosh", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "add", "all", "amax", "amin", "any", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "array_split", "asin", "asinh", "astype",
    "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "attention_with_weights", "average",
    "avg_pool1d", "avg_pool2d", "batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_to", "cbrt", "ceil", "celu", "chunk", "clip",
    "clone", "concat", "concatenate", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "copysign",
    "cos", "cosh", "cosine_embedding_loss", "cosine_similarity", "count_nonzero", "cross_entropy", "cumprod",
    "cumsum", "deg2rad", "degrees", "detach", "diag", "diagonal", "diff", "divide", "divmod", "dot",
    "dropout", "dstack", "einsum", "elu", "embedding", "embedding_bag", "equal", "erf", "exp", "exp2",
    "expand", "expand_dims", "expm1", "fabs", "fix", "flatten", "flip", "fliplr", "flipud", "float_power",
    "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp", "gather", "gelu", "glu", "greater",
    "greater_equal", "group_norm", "gru", "hardsigmoid", "hardswish", "hardtanh", "heaviside", "hstack",
    "huber_loss", "hypot", "i0", "index_add", "index_select", "inner", "instance_norm", "interpolate",
    "invert", "isfinite", "isinf", "isnan", "kl_div", "kron", "l1_loss", "layer_norm", "ldexp", "leaky_relu",
    "less", "less_equal", "linear", "log", "log1p", "log2", "log10", "log_softmax", "logaddexp", "logaddexp2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "logsigmoid", "logsumexp", "lstm",
    "margin_ranking_loss", "masked_fill", "masked_select", "matmul", "max", "max_pool1d", "max_pool2d",
    "maximum", "mean", "median", "min", "minimum", "mish", "mod", "modf", "moveaxis", "mse_loss", "multiply",
    "nan_to_num", "negative", "nll_loss", "nonzero", "norm", "not_equal", "outer", "pad", "permute_dims",
    "positive", "pow", "power", "prelu", "prod", "ptp", "put_along_axis", "rad2deg", "radians", "ravel",
    "reciprocal", "relu", "relu6", "remainder", "repeat", "reshape", "rint", "rms_norm", "rnn", "roll",
    "rot90", "rotate_pairs", "round", "scaled_dot_product_attention", "scatter", "scatter_add", "selu",
    "sigmoid", "sign", "silu", "sin", "sinc", "sinh", "smooth_l1_loss", "softmax", "softplus", "softsign",
    "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "swapaxes", "take",
    "take_along_axis", "tan", "tanh", "tensordot", "tile", "to", "topk", "trace", "transpose", "tril", "triu",
    "true_divide", "trunc", "unbind", "unsqueeze", "var", "vdot", "vstack", "where",
]  # fmt: skip
