"""Lines of several processes stay whole and in order, and nobody hangs when no one reads them."""

import io
import os
import threading

import pytest

from psframework.cluster.launch.lines import Lines, wants_colour


class Slow(io.StringIO):
    """A stream that lets other threads in between any two writes."""

    def write(self, text: str) -> int:
        for character in text:
            super().write(character)
        return len(text)


def test_lines_of_threads_do_not_mix() -> None:
    stream = Slow()
    lines = Lines(stream)

    def talk(label: str) -> None:
        for number in range(200):
            lines.show(label, f"{label * 20} {number}")

    threads = [threading.Thread(target=talk, args=(label,)) for label in "012"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = stream.getvalue().splitlines()
    assert len(shown) == 600
    for label in "012":
        own = [line for line in shown if line.startswith(f"[{label}] ")]
        assert own == [f"[{label}] {label * 20} {number}" for number in range(200)]


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    stream = io.StringIO()
    Lines(stream).show("0", "10%\r50%\r100%\r")
    assert stream.getvalue() == "[0] 100%\n"


def test_a_stream_that_can_not_show_everything() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Lines(stream).show("0", "naïve")
    assert raw.getvalue() == b"[0] na\\xefve\n"


def test_labels_have_colours_on_a_terminal() -> None:
    stream = io.StringIO()
    lines = Lines(stream, colour=True)
    for label in "0", "1", "0":
        lines.show(label, "x")
    first, second, third = stream.getvalue().splitlines()
    assert first == third == "\033[36m[0]\033[0m x"
    assert second == "\033[33m[1]\033[0m x"


@pytest.mark.parametrize(
    ("terminal", "environment", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
    ],
)
def test_when_to_colour(terminal: bool, environment: dict[str, str], wanted: bool) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    assert wants_colour(stream, environment) is wanted


def test_a_reader_that_leaves_is_told_once() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    told: list[None] = []
    with os.fdopen(writing, "w") as stream:
        lines = Lines(stream, on_closed=lambda: told.append(None))
        for _ in range(3):
            lines.show("0", "anybody?")
        assert len(told) == 1
        lines.end()  # what is in the buffer goes nowhere when the stream is closed, without an error
