import gc

import numpy as np
import pytest

import psframework as psf
from psframework import backend
from psframework.autograd.dlpack import from_dlpack
from psframework.errors import ArgumentError, AutogradError


def test_memory_is_shared_both_ways():
    array = np.arange(6.0).reshape(2, 3)
    x = from_dlpack(array.T, requires_grad=True)
    assert np.shares_memory(x.data, array) and x.shape == (3, 2) and x.requires_grad
    lent = np.from_dlpack(psf.tensor(array))
    assert lent.tolist() == array.tolist()
    y = psf.tensor([1.0, 2.0])
    np.from_dlpack(y)[0] = 5
    assert y.tolist() == [5, 2] and from_dlpack(y).data is not None
    assert not np.shares_memory(from_dlpack(array, copy=True).data, array)


def test_read_only_memory_is_copied_or_refused():
    read_only = np.frombuffer(b"12345678", np.float32)
    x = from_dlpack(read_only)
    x += 1
    assert x.data.flags.writeable and not np.shares_memory(x.data, read_only)
    with pytest.raises(ArgumentError, match="read-only"):
        from_dlpack(read_only, copy=False)


def test_what_requires_grad_is_not_lent():
    with pytest.raises(AutogradError, match=r"lend tensor\.detach\(\)"):
        np.from_dlpack(psf.tensor([1.0], True))
    with pytest.raises(BufferError, match="can't lend bfloat16"):
        psf.tensor([1.0]).to("bfloat16").__dlpack__()


class Elsewhere:
    def __init__(self, kind):
        self.kind = kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **options):
        raise BufferError("not today")


class Nowhere:
    """As torch's tensors on "meta"."""

    def __dlpack_device__(self):
        raise ValueError("no such device")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([1.0], "not list"),
        (Elsewhere(1), "Elsewhere can't be taken: not today"),
        (Nowhere(), "Nowhere can't be taken: no such device"),
        (Elsewhere(8), "DLPack's type 8: only CPU and CUDA"),
        (np.array(["a"]), "can't be taken"),
    ],
)
def test_what_is_no_source(source, message):
    with pytest.raises(ArgumentError, match=message):
        from_dlpack(source)


@pytest.mark.oracle
def test_with_torch():
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6.0).reshape(2, 3)
    ours = from_dlpack(theirs)
    ours.data[0, 0] = 9
    assert theirs[0, 0] == 9 and torch.from_dlpack(ours).data_ptr() == theirs.data_ptr()
    with pytest.raises(ArgumentError, match="Can't export tensors that require gradient"):
        from_dlpack(torch.ones(1, requires_grad=True))


@pytest.mark.oracle
def test_bfloat16_of_torch_which_numpy_does_not_know():
    torch = pytest.importorskip("torch")
    theirs = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).to(torch.bfloat16)
    for view in (theirs, theirs.permute(2, 0, 1), theirs[1:, :, ::2], theirs[0, 0, 0], theirs[:0]):
        ours = from_dlpack(view)
        assert ours.dtype == backend.bfloat16 and ours.tolist() == view.tolist()
    ours = from_dlpack(theirs[1])
    ours.data[0, 0] = 99
    assert theirs[1, 0, 0] == 99
    del theirs, view
    gc.collect()
    assert ours.tolist()[0] == [99, 13, 14, 15]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_arrays_are_copied(dtype):
    jax = pytest.importorskip("jax")
    lent = jax.numpy.ones(3, dtype)
    x = from_dlpack(lent)
    x += 1
    assert (
        x.dtype == backend.dtype_from_name(dtype) and lent.tolist() == [1, 1, 1] and x.tolist() == [2, 2, 2]
    )
    with pytest.raises(ArgumentError, match="read-only"):
        from_dlpack(lent, copy=False)
