"""Members of tests: they find each other by the book."""

import numpy as np
import pytest

from psframework.errors import PeerLost
from psframework.testing.workers import Phonebook, worker


async def test_members_are_in_the_book_while_they_live() -> None:
    book = Phonebook()
    async with worker("ann", book) as ann, worker("bob", book, listens=False) as bob:
        assert book.address_of("ann").addresses == [ann.address] and ann.name == "ann"
        assert not book.address_of(bob.agent.identity).addresses
        relu = ann.remote.rpc_async("ann", "psframework.nn.functional.relu", (np.array([-1.0, 2.0]),))
        assert (await relu).numpy().tolist() == [0.0, 2.0]
    with pytest.raises(PeerLost, match="no member"):
        book.address_of("carl")
