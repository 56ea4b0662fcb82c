"""Members with distributed autograd, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from dist_crew import Crew


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    async with AsyncExitStack() as stack:
        yield Crew(stack)
