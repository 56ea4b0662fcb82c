from collections import namedtuple

import pytest

from psframework import nn
from psframework.errors import ConfigurationError
from psframework.interop.structure import flatten, framework, home, plant

Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "value",
    [3, (1, "a", 2), {"x": [1, (2, 3)], "y": None}, Pair(1, [2]), [], ((), {}), "text"],
    ids=repr,
)
def test_what_is_taken_apart_is_put_together_again(value):
    found, rebuild = flatten(value, int)
    assert rebuild(found) == value and type(rebuild(found)) is type(value)
    assert rebuild([item + 1 for item in found]) != value or not found


def test_found_in_order():
    assert flatten({"b": [1, 2], "a": (3, "x", [4])}, int)[0] == [1, 2, 3, 4]


def test_dotted_names_become_modules():
    tree = nn.Module()
    import numpy as np

    first = plant(tree, "0.block.weight", np.zeros(2), True)
    second = plant(tree, "0.block.bias", np.zeros(1), False)
    assert dict(tree.named_parameters()) == {"0.block.weight": first, "0.block.bias": second}
    assert (first.requires_grad, second.requires_grad) == (True, False)
    assert home(tree, "0.block.weight") == (home(tree, "0.block.bias")[0], "weight")


def test_a_framework_that_is_not_installed():
    with pytest.raises(ConfigurationError, match=r"pip install 'psframework\[nowhere\]'"):
        framework("nowhere")
