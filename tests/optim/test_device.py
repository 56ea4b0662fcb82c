"""Rules on arrays of another library: everything stays on the device, nothing is mixed with NumPy's."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psframework import backend
from psframework.optim import AdamRule, RMSpropRule, SGDRule, UpdateRule, apply_blocks


class DeviceArray(np.ndarray):
    """Stands in for CuPy's: refuses to meet a NumPy array."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [*inputs, *options.get("out", ())]
        if mixed := [type(a) for a in arrays if type(a) is np.ndarray]:
            raise TypeError(f"{ufunc.__name__} mixes DeviceArray and {mixed}")
        plain = [a.view(np.ndarray) if isinstance(a, DeviceArray) else a for a in inputs]
        if out := options.pop("out", None):
            getattr(ufunc, method)(*plain, out=tuple(a.view(np.ndarray) for a in out), **options)
            return out[0]
        return device(getattr(ufunc, method)(*plain, **options))

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(value) is np.ndarray:
            raise TypeError("a NumPy array was written into a DeviceArray")
        plain = value.view(np.ndarray) if isinstance(value, DeviceArray) else value
        self.view(np.ndarray)[key.view(np.ndarray) if isinstance(key, DeviceArray) else key] = plain


def device(array: Any) -> Any:
    """The array on the device."""
    return np.asarray(array).view(DeviceArray)


@pytest.fixture(autouse=True)
def _namespace() -> Iterator[None]:
    names = ("multiply", "add", "subtract", "divide", "sqrt", "maximum", "not_equal")
    namespace = SimpleNamespace(**{name: getattr(np, name) for name in names})
    namespace.empty = lambda shape, dtype: device(np.empty(shape, dtype))
    namespace.full = lambda shape, value, dtype: device(np.full(shape, value, dtype))
    before = dict(backend._namespaces)
    backend.register_namespace(DeviceArray, namespace)
    yield
    backend._namespaces.clear()
    backend._namespaces.update(before)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "rule",
    [
        SGDRule(momentum=0.9, nesterov=True),
        AdamRule(weight_decay=0.1, amsgrad=True),
        RMSpropRule(centered=True, momentum=0.5),
    ],
)
def test_a_rule_stays_on_the_device_and_gives_the_same_bits(rule: UpdateRule, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    host = rng.standard_normal(1000).astype(dtype)
    gradients = [rng.standard_normal(1000).astype(dtype) for _ in range(2)]
    there, out = device(host.copy()), device(np.empty_like(host))
    host_state, state = rule.init_state(host), rule.init_state(there)
    assert all(type(slot) is DeviceArray for slot in state.values())
    for step in (1, 2, 3):
        apply_blocks(rule, host, gradients, host_state, step)
        apply_blocks(rule, there, [device(g) for g in gradients], state, step, out)
    np.testing.assert_array_equal(there.view(np.ndarray), host)
    np.testing.assert_array_equal(out.view(np.ndarray), host)


def test_mixing_is_noticed() -> None:
    parameter = device(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="mixes"):
        SGDRule().update(parameter, np.zeros(3, np.float32), {}, 1)
