"""Log lines: formats, one record a line, threads, streams that break."""

from __future__ import annotations

import io
import json
import logging
import threading

import pytest
import structlog

from psframework.errors import ConfigurationError
from psframework.observe import logs


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    """Each test starts from an unconfigured structlog, and leaves none behind."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    for name in ("PSF_LOG_FORMAT", "PSF_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    logs._announcer = None
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def test_json_lines_carry_fields_and_context():
    out = io.StringIO()
    logs.configure_logging(fmt="json", stream=out)
    with structlog.contextvars.bound_contextvars(call=7):
        logs.get_logger("psf.rpc", shard="ps-0").warning("call failed", code="ABORTED", value={1, 2})
    line = json.loads(out.getvalue())
    assert line["event"] == "call failed" and line["level"] == "warning" and line["logger"] == "psf.rpc"
    assert (line["shard"], line["code"], line["call"], line["value"]) == ("ps-0", "ABORTED", 7, "{1, 2}")


def test_logfmt_keeps_a_record_on_one_line():
    out = io.StringIO()
    logs.configure_logging(fmt="logfmt", stream=out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logs.get_logger("x").exception('an "event"\nof two lines', number=3)
    (line,) = out.getvalue().splitlines()
    assert "level=error" in line and "number=3" in line and r"two\\nlines" in line


def test_console_by_the_environment(monkeypatch):
    monkeypatch.setenv("PSF_LOG_FORMAT", "console")
    monkeypatch.setenv("PSF_LOG_LEVEL", "WARNING")
    out = io.StringIO()
    logs.configure_logging(stream=out)
    logs.get_logger("x").info("hidden")
    logs.get_logger("x").warning("shown", key=1)
    assert "hidden" not in out.getvalue() and "shown" in out.getvalue() and "key=1" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(("fmt", "level"), [("xml", None), (None, "loud")])
def test_unknown_choices_are_refused(fmt, level):
    with pytest.raises(ConfigurationError, match="choose one of"):
        logs.configure_logging(fmt=fmt, level=level, stream=io.StringIO())


def test_the_standard_library_and_asyncio_log_into_the_same_stream():
    out = io.StringIO()
    logs.configure_logging(fmt="json", stream=out)
    logs.configure_logging(fmt="json", stream=out)  # twice adds no second handler
    logging.getLogger("asyncio").error("Task %s failed", "t1")
    logging.getLogger("grpc").info("hidden")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["event"] == "Task t1 failed" and json.loads(line)["logger"] == "asyncio"


@pytest.mark.parametrize("fmt", ["logfmt", "console", "json"])
def test_announcements_are_found_by_programs(fmt):
    out = io.StringIO()
    logs.configure_logging(fmt=fmt, level="error", stream=out)
    logs.announce("serving on 127.0.0.1:5", role="worker")
    (line,) = out.getvalue().splitlines()
    text = json.loads(line)["event"] if fmt == "json" else line
    assert text.startswith("serving on 127.0.0.1:5")


def test_unconfigured_programs_see_warnings_on_stderr_and_announcements_on_stdout(capsys):
    logs.get_logger("x").info("hidden")
    logs.get_logger("x").warning("shown")
    logs.announce("serving on 127.0.0.1:5")
    seen = capsys.readouterr()
    assert "shown" in seen.err and "hidden" not in seen.err
    assert seen.out == "serving on 127.0.0.1:5\n"


def test_the_users_own_configuration_wins():
    structlog.configure(processors=[lambda logger, method, event: ("own " + event["event"],)])
    with structlog.testing.capture_logs() as captured:
        logs.get_logger("x").warning("seen")
    assert captured[0]["event"] == "seen"


def test_threads_do_not_mix_their_lines():
    out = io.StringIO()
    logs.configure_logging(fmt="json", stream=out)

    def write(i):
        for j in range(50):
            logs.get_logger("x").info("line", thread=i, number=j, text="x" * 200)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert sorted((line["thread"], line["number"]) for line in lines) == [
        (i, j) for i in range(4) for j in range(50)
    ]


def test_a_closed_stream_harms_nobody():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    for stream in (Gone(), io.StringIO()):
        logs.configure_logging(fmt="logfmt", stream=stream)
        stream.close()
        logs.get_logger("x").warning("lost")
        logs.announce("serving on x")
