"""Embedding: a trained vector for each id, alone or summed over bags of ids."""

from __future__ import annotations

from typing import Any, ClassVar

from psframework.autograd import Tensor
from psframework.autograd.ops.embedding import checked_table, embedding, padding_row
from psframework.autograd.ops.embedding_bag import MODES, embedding_bag
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import init
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class _Table(Module):
    """A table of one row an id."""

    _options: ClassVar[tuple[tuple[str, Any], ...]]  # shown in the repr where they are not this
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    weight: Parameter

    def _make(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, dtype: Any) -> None:
        name = type(self).__name__
        if num_embeddings < 1 or embedding_dim < 1:
            raise ArgumentError(f"{name} needs positive sizes, not {num_embeddings} and {embedding_dim}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_row(name, padding_idx, num_embeddings)
        self.weight = Parameter(empty((num_embeddings, embedding_dim), dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values: standard normal, and zeros in the padding row."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.data[self.padding_idx] = 0

    @classmethod
    def _from(cls, embeddings: Tensor | Array, freeze: bool, options: dict[str, Any]) -> Any:
        array = checked_table(f"{cls.__name__}.from_pretrained", embeddings).data
        kind: Any = cls  # whose constructor is not this class's
        module = kind(*array.shape, dtype=array.dtype, **options)
        module.weight.data = array
        module.weight.requires_grad = not freeze
        return module

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        shown = [
            f"{name}={value!r}"
            for name, default in self._options
            if (value := getattr(self, name)) != default
        ]
        return ", ".join([str(self.num_embeddings), str(self.embedding_dim), *shown])


class Embedding(_Table):
    """A vector for each id: from ids of any shape to that shape with an axis of `embedding_dim` more.

    Args:
        num_embeddings: number of rows; ids are in [0, num_embeddings).
        embedding_dim: length of each vector.
        padding_idx: a row that starts as zeros and is not trained, counted from the end if negative.
        max_norm: rows that are used and longer are first shortened to it, in place.
        norm_type: of that length: p of the p-norm.
        scale_grad_by_freq: divide each row's gradient by how often the row is in a batch.
        sparse: the gradient is a `SparseRows`: a step costs what the batch's rows cost, whatever the table's
            size. `SGD` without momentum or weight decay, `Adagrad` and `Adam` take it.
        dtype: of the table; float32 if None.

    Attributes:
        weight: (num_embeddings, embedding_dim), standard normal.
    """

    _options = (
        ("padding_idx", None), ("max_norm", None), ("norm_type", 2.0), ("scale_grad_by_freq", False),
        ("sparse", False),
    )  # fmt: skip

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        dtype: Any = None,
    ):
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._make(num_embeddings, embedding_dim, padding_idx, dtype)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor | Array, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> Embedding:
        """A layer over an existing table, which is shared, not copied.

        Args:
            embeddings: (rows, size), floating.
            freeze: whether to leave it as it is.
            padding_idx: as of the layer; the row keeps its values.
            options: as of the layer.
        """
        return cls._from(embeddings, freeze, {"padding_idx": padding_idx, **options})  # type: ignore[no-any-return]

    def forward(self, input: Tensor | Array) -> Tensor:
        """Applies the layer."""
        return embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )


class EmbeddingBag(_Table):
    """Sums, means or maxima of bags of ids' vectors, without a copy of all those vectors.

    Args:
        num_embeddings: number of rows; ids are in [0, num_embeddings).
        embedding_dim: length of each vector.
        max_norm: rows that are used and longer are first shortened to it, in place.
        norm_type: of that length: p of the p-norm.
        scale_grad_by_freq: divide each row's gradient by how often the row is in a batch.
        mode: "sum", "mean" or "max".
        sparse: the gradient is a `SparseRows`; not with "max".
        include_last_offset: whether offsets have a last item more, the number of ids.
        padding_idx: a row that starts as zeros and takes no part, counted from the end if negative.
        dtype: of the table; float32 if None.

    Attributes:
        weight: (num_embeddings, embedding_dim), standard normal.
    """

    _options = (
        ("max_norm", None), ("norm_type", 2.0), ("scale_grad_by_freq", False), ("mode", ""),
        ("sparse", False), ("include_last_offset", False), ("padding_idx", None),
    )  # fmt: skip

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
    ):
        if mode not in MODES:
            raise ArgumentError(f"EmbeddingBag: mode {mode!r} is none of {', '.join(MODES)}")
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.mode, self.sparse = scale_grad_by_freq, mode, sparse
        self.include_last_offset = include_last_offset
        self._make(num_embeddings, embedding_dim, padding_idx, dtype)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor | Array, freeze: bool = True, **options: Any) -> EmbeddingBag:
        """A layer over an existing table (rows, size), which is shared; options as of the layer."""
        return cls._from(embeddings, freeze, options)  # type: ignore[no-any-return]

    def forward(
        self,
        input: Tensor | Array,
        offsets: Tensor | Array | None = None,
        per_sample_weights: Tensor | Array | None = None,
    ) -> Tensor:
        """Applies the layer.

        Args:
            input: ids: (bags, length), or (n,) with `offsets`.
            offsets: (bags,) where each bag starts.
            per_sample_weights: factors of the vectors, of the shape of `input`; with mode "sum" only.
        """
        return embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )
