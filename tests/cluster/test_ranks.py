"""RANK and WORLD_SIZE."""

import numpy as np
import pytest

from psframework.cluster.ranks import environment_of_ranks
from psframework.errors import ArgumentError, ConfigurationError


def test_what_a_launcher_says() -> None:
    launched = {"RANK": "3", "WORLD_SIZE": "4"}
    assert environment_of_ranks(None, launched) == (4, 3)
    assert environment_of_ranks(4, launched) == (4, 3)
    assert environment_of_ranks(2, launched) == (2, None)  # a group of some of them
    assert environment_of_ranks(2, {}) == (2, None)
    assert environment_of_ranks(2, {"RANK": "1"}) == (2, None)


def test_what_it_does_not_say() -> None:
    with pytest.raises(ArgumentError, match="world_size="):
        environment_of_ranks(None, {"RANK": "1"})
    with pytest.raises(ConfigurationError, match="WORLD_SIZE='four'"):
        environment_of_ranks(2, {"WORLD_SIZE": "four"})


def test_a_size_that_was_read_from_somewhere_as_text() -> None:
    with pytest.raises(ArgumentError, match="world_size='2': not an integer"):
        environment_of_ranks("2", {})  # type: ignore[arg-type]
    assert environment_of_ranks(np.int64(2), {}) == (2, None)  # type: ignore[arg-type]
