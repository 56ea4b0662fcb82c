"""Members with references, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import rref_things
from rref_crew import Team


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    rref_things.made.clear()
    rref_things.gate.clear()
    async with AsyncExitStack() as stack:
        yield Team(stack)
        rref_things.kept.clear()
        rref_things.gate.set()
