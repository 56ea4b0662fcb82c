"""Letters are told apart by their keys; what carries them has what transports ask of a Post."""

import inspect

import pytest
from collective import MemoryPost

from psframework.collective.carrier import Carrier, Part
from psframework.collective.post import Key, Post


def test_keys():
    assert Key("", 3) == Key("", 3, 0)
    assert len({Key("", 3), Key("leaders", 3), Key("", 4), Key("", 3, 1)}) == 4


@pytest.mark.parametrize("kind", [Carrier, Part, MemoryPost])
def test_posts(kind):
    for name in ("rank", "size", "names"):
        assert hasattr(kind, name) or name in inspect.getsource(kind.__init__), name
    for name in ("send", "receive"):
        asked, made = getattr(Post, name), getattr(kind, name)
        assert list(inspect.signature(made).parameters) == list(inspect.signature(asked).parameters)
        assert inspect.iscoroutinefunction(made)
