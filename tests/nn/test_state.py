"""Loading a state: messages that name each key and the fix. What a load does is in `test_module.py`."""

import numpy as np
import pytest

from psframework.errors import ModelMismatch
from psframework.nn import BatchNorm1d, Linear, Sequential
from psframework.nn.state import load, state_arrays
from psframework.testing.strict_device import strict_devices


def test_arrays_are_those_of_the_module() -> None:
    net = Sequential(Linear(2, 2), BatchNorm1d(2))
    net[1].register_buffer("cache", np.zeros(2), persistent=False)
    arrays = dict(state_arrays(net))
    assert arrays["0.weight"] is net[0].weight.data and arrays["1.running_var"] is net[1].running_var
    assert "1.cache" not in arrays


def test_messages_name_the_keys_and_the_fix() -> None:
    net = Sequential(Linear(2, 2))
    with pytest.raises(ModelMismatch) as caught:
        load(net, {"module.0.weight": np.zeros((2, 2)), "0.bias": np.zeros(3)}, strict=True)
    message = str(caught.value)
    for words in (
        "the state does not fit Sequential",
        "0.bias has shape (3,), here (2,)",
        "0.weight is missing",
        "module.0.weight is unexpected (is it 0.weight?)",
        "made with the same arguments, or pass strict=False",
    ):
        assert words in message
    with pytest.raises(ModelMismatch) as caught:
        load(net, {"0.bias": np.zeros(3)}, strict=False)
    assert "strict" not in str(caught.value)


def test_a_state_from_the_host_loads_into_a_module_on_a_device() -> None:
    with strict_devices("gpu-0") as [device]:
        source, target = Linear(2, 2), Linear(2, 2).to(device.device)
        target.load_state_dict(source.state_dict())
        assert np.array_equal(device.asnumpy(target.weight.data), source.weight.data)
        source.load_state_dict(target.state_dict())
