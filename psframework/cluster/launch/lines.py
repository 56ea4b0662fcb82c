"""What several processes print, on one stream: whole lines, each behind the label of its process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 31)  # of ANSI terminals: cyan, yellow, green, magenta, blue, red


class Lines:
    """Writes lines of several threads, one at a time; those of one process stay in their order.

    Args:
        stream: where to.
        colour: whether labels are coloured, each in its own.
        on_closed: called once if nobody reads the stream any more, from the thread that noticed.
    """

    def __init__(
        self, stream: TextIO, *, colour: bool = False, on_closed: Callable[[], object] | None = None
    ) -> None:
        self.on_closed = on_closed
        self._stream = stream
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # what a terminal can't show must not end the thread
        self._colour = colour
        self._lock = threading.Lock()
        self._labels: dict[str, str] = {}
        self._closed = False

    def show(self, label: str, line: str) -> None:
        """Writes one line; of a line that overwrote itself, such as a progress bar, what was seen last."""
        text = line.rstrip("\r").rpartition("\r")[2]
        with self._lock:
            if self._closed:
                return
            try:
                self._stream.write(f"{self._label(label)} {text}\n")
                self._stream.flush()
                return
            except OSError:
                self._closed = True
        if self.on_closed is not None:
            self.on_closed()

    def end(self) -> None:
        """No more is written; where nobody reads, the interpreter won't complain of what is left."""
        with self._lock:
            if self._closed:
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), self._stream.fileno())
            self._closed = True

    def _label(self, label: str) -> str:
        if label not in self._labels:
            code = _COLOURS[len(self._labels) % len(_COLOURS)]
            self._labels[label] = f"\033[{code}m[{label}]\033[0m" if self._colour else f"[{label}]"
        return self._labels[label]


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether to colour what goes there (NO_COLOR and FORCE_COLOR as everywhere)."""
    if environment.get("NO_COLOR"):
        return False
    return bool(environment.get("FORCE_COLOR")) or stream.isatty()
