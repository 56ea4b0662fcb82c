import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest

from psframework import backend
from psframework.errors import ArgumentError


def test_xp_of_arrays():
    assert backend.xp(np.ones(2)) is np
    assert backend.xp(np.ones((2, 2)).view(np.matrix)) is np
    assert backend.xp(np.float32(1)) is np


@pytest.mark.parametrize("value", [1, [1.0], "a", None, object()])
def test_what_is_no_array(value):
    assert not backend.is_array(value)
    with pytest.raises(ArgumentError, match="is not an array"):
        backend.xp(value)


def test_is_array():
    assert backend.is_array(np.ones(2)) and not backend.is_array(np.float32(1))
    assert isinstance(backend.as_array(np.float32(1)), np.ndarray)


def test_another_kind_of_array():
    class DeviceArray:
        pass

    module = types.SimpleNamespace()
    backend.register_namespace(DeviceArray, module)
    assert backend.xp(DeviceArray()) is module and backend.is_array(DeviceArray())
    backend.forget_namespace(DeviceArray)
    assert not backend.is_array(DeviceArray())


def test_widen():
    wide = np.ones(1, np.float32)
    assert backend.widen(wide) is wide and backend.widen(np.ones(1, ml_dtypes.bfloat16)).dtype == np.float32


def test_cupy_is_loaded_only_when_asked_for():
    code = "import sys, psframework.autograd as a, psframework.backend as b; assert 'cupy' not in sys.modules"
    code += "; b.cupy(); a.tensor([1.0])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
