"""Letters that came before they were asked for, and askers that wait for theirs. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from psframework.collective.post import Key, Letter
from psframework.errors import ArgumentError, WireError

MOST_BYTES: Final = 256 << 20
"""What one rank's letters may hold here before they are asked for."""

MOST_LETTERS: Final = 4096

Waiter = Callable[[Letter], None]


class Mailbox:
    """The letters to one rank of one group.

    Args:
        most_bytes: of letters from one rank that nobody has asked for yet; one letter is always taken.
        most_letters: likewise.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_letters: int = MOST_LETTERS) -> None:
        self._most_bytes, self._most_letters = most_bytes, most_letters
        self._letters: dict[tuple[int, Key], Letter] = {}
        self._waiters: dict[tuple[int, Key], Waiter] = {}
        self._held: dict[int, tuple[int, int]] = {}  # of a rank: letters, bytes

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, source: int, key: Key, letter: Letter) -> bool:
        """A letter has come: whoever waits for it gets it. Returns whether there was room.

        Raises:
            WireError: one of that key is here already.
        """
        place = (source, key)
        if place in self._letters:
            raise WireError(f"rank {source} sent {key} twice")
        waiter = self._waiters.pop(place, None)
        if waiter is not None:
            waiter(letter)
            return True
        count, nbytes = self._held.get(source, (0, 0))
        size = sum(map(len, letter.parts)) + len(letter.header)
        if count and (count >= self._most_letters or nbytes + size > self._most_bytes):
            return False
        self._letters[place] = letter
        self._held[source] = count + 1, nbytes + size
        return True

    def take(self, source: int, key: Key) -> Letter | None:
        """The letter of that key, if it is here; it is the asker's from now on."""
        letter = self._letters.pop((source, key), None)
        if letter is not None:
            count, nbytes = self._held.pop(source)
            if count > 1:
                size = sum(map(len, letter.parts)) + len(letter.header)
                self._held[source] = count - 1, nbytes - size
        return letter

    def wait(self, source: int, key: Key, waiter: Waiter) -> None:
        """Calls `waiter(letter)` when the letter of that key comes, which is not here yet."""
        if (source, key) in self._waiters:
            raise ArgumentError(f"two wait for {key} of rank {source}")
        self._waiters[source, key] = waiter

    def forget(self, source: int, key: Key) -> None:
        """Nobody waits for that letter any more."""
        self._waiters.pop((source, key), None)

    def clear(self) -> None:
        """The group has ended: lets go of all letters."""
        self._letters.clear()
        self._waiters.clear()
        self._held.clear()
