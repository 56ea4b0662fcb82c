import dataclasses
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

from psframework import nn
from psframework.errors import ArgumentError, ConfigurationError
from psframework.interop.structure import flatten, framework, home, plant

Pair = namedtuple("Pair", "first second")


class Checked(Pair):
    def __new__(cls, first):
        return super().__new__(cls, first, [first])


@dataclasses.dataclass(frozen=True)
class Result:
    value: object
    extra: object = None
    made: object = dataclasses.field(default=7, init=False)


def is_int(value):
    return isinstance(value, int)


@pytest.mark.parametrize(
    "value",
    [
        *(3, (1, "a", 2), {"x": [1, (2, 3)], "y": None}, Pair(1, [2]), Checked(4), [], ((), {}), "text"),
        *(OrderedDict(a=1), defaultdict(list, a=1), Result(1, {"x": 2}), Result("text"), Result),
    ],
    ids=repr,
)
def test_what_is_taken_apart_is_put_together_again(value):
    found, rebuild = flatten(value, is_int)
    assert rebuild(found) == value and type(rebuild(found)) is type(value)
    assert rebuild([item + 1 for item in found]) != value if found else rebuild([]) is value


def test_found_in_order_and_the_value_is_left_alone():
    value = {"b": [1, 2], "a": (3, "x", [4]), "c": Result(5)}
    found, rebuild = flatten(value, is_int)
    assert found == [1, 2, 3, 4, 5, 7]
    other = rebuild("abcdef")
    assert other["a"] == ("c", "x", ["d"]) and (other["c"].value, other["c"].made) == ("e", "f")
    assert value == {"b": [1, 2], "a": (3, "x", [4]), "c": Result(5)}
    assert rebuild(found).keys() == value.keys()
    assert flatten(defaultdict(list, a=1), is_int)[1]([2])["new"] == []


def test_dotted_names_become_modules():
    tree = nn.Module()
    first, second = nn.Parameter(np.zeros(2)), nn.Parameter(np.zeros(1))
    owner, name = plant(tree, "0.block.weight", first)
    assert name == "weight" and owner is tree.get_submodule("0.block")
    assert plant(tree, "0.block.bias", second)[0] is owner
    plant(tree, "0.kept", np.ones(1))
    plant(tree, "0.other", np.ones(1), persistent=False)
    assert dict(tree.named_parameters()) == {"0.block.weight": first, "0.block.bias": second}
    assert list(dict(tree.named_buffers())) == ["0.kept", "0.other"]
    assert list(tree.state_dict()) == ["0.kept", "0.block.weight", "0.block.bias"]
    assert home(tree, "0.block.free") == (owner, "free")


@pytest.mark.parametrize("taken", ["a", "a.b", "a.b.c", "training", "forward", "x.apply", "_parameters.x"])
def test_a_name_that_is_taken(taken):
    tree = nn.Module()
    plant(tree, "a.b", nn.Parameter(np.zeros(2)))
    with pytest.raises(ArgumentError, match=f"'{taken}' cannot name a parameter"):
        plant(tree, taken, nn.Parameter(np.zeros(2)))
    assert list(tree.state_dict()) == ["a.b"]


def test_a_framework_that_is_not_installed():
    with pytest.raises(ConfigurationError, match=r"pip install 'psframework\[nowhere\]'"):
        framework("nowhere")
