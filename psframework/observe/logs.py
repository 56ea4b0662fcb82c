"""Structured logs: readable on a terminal, logfmt or JSON elsewhere; safe from every thread and loop.

Services call `configure_logging` once. In users' programs nothing is configured unless they do it themselves:
then `get_logger` shows warnings on stderr, and a configuration of structlog that is there already wins.
structlog is imported when it is first needed: it brings rich along, which a health check would only wait for.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import IO, TYPE_CHECKING, Literal

from psframework.errors import ConfigurationError

if TYPE_CHECKING:
    import structlog
    from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["console", "logfmt", "json"]
FORMATS: tuple[Format, ...] = ("console", "logfmt", "json")
LEVELS = ("debug", "info", "warning", "error")


class LineWriter:
    """Writes whole lines from any thread, each at once, and outlives a reader that went away.

    Args:
        stream: where to; None looks up sys.stderr at each line, so that a replaced stderr is respected.
    """

    def __init__(self, stream: IO[str] | None = None):
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, message: str) -> None:
        """Writes one line and flushes it."""
        stream = self._stream or sys.stderr
        with self._lock:
            try:
                stream.write(message + "\n")
                stream.flush()
            except (OSError, ValueError):
                pass  # a closed pipe or stream: a service must not die of its log

    debug = info = warning = error = critical = exception = log = msg


_announcer: tuple[str, LineWriter] | None = None  # format and stream of `announce`


def configure_logging(
    *, fmt: str | None = None, level: str | None = None, stream: IO[str] | None = None
) -> None:
    """Sets up the logs of this process, those of the standard library and of gRPC's Python side included.

    Args:
        fmt: "console", "logfmt" or "json"; default PSF_LOG_FORMAT, else console on a tty, logfmt elsewhere.
        level: "debug", "info", "warning" or "error"; default PSF_LOG_LEVEL, else info.
        stream: where to; default stdout.

    Raises:
        ConfigurationError: an unknown format or level.
    """
    out = stream or sys.stdout
    chosen = fmt or os.environ.get("PSF_LOG_FORMAT") or ("console" if out.isatty() else "logfmt")
    threshold = (level or os.environ.get("PSF_LOG_LEVEL") or "info").lower()
    if chosen not in FORMATS:
        raise ConfigurationError(
            f"log format {chosen!r}: choose one of {', '.join(FORMATS)} (PSF_LOG_FORMAT)"
        )
    if threshold not in LEVELS:
        raise ConfigurationError(
            f"log level {threshold!r}: choose one of {', '.join(LEVELS)} (PSF_LOG_LEVEL)"
        )
    number = logging.getLevelNamesMapping()[threshold.upper()]
    global _announcer
    writer = LineWriter(out)
    _announcer = chosen, writer
    _configure_structlog(chosen, number, writer, colors=out.isatty())
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, _Bridge)]
    root.addHandler(_Bridge())
    root.setLevel(max(number, logging.WARNING))


def get_logger(name: str, **context: object) -> structlog.stdlib.BoundLogger:
    """A logger that adds `logger=name` and `context` to each line; cheap, so ask where you log.

    The methods take an event and fields: `log.warning("call failed", method=..., code=...)`.
    """
    import structlog

    if not structlog.is_configured():
        _configure_structlog("console", logging.WARNING, LineWriter(), colors=False)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(**context).bind(logger=name)
    return logger


def announce(event: str, **fields: object) -> None:
    """Writes a line that other programs wait for: the bare text first, or in JSON as `event`.

    It is shown whatever the level is, and flushed; on stdout where nothing is configured.
    """
    fmt, writer = _announcer or ("logfmt", LineWriter(sys.stdout))
    if fmt == "json":
        writer.msg(json.dumps({"event": event, "level": "info", **fields}, default=repr))
    else:
        writer.msg(event + "".join(f" {key}={value}" for key, value in fields.items()))


def _configure_structlog(fmt: str, level: int, writer: LineWriter, *, colors: bool) -> None:
    import structlog

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *_processors(fmt, colors)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *args: writer,
        cache_logger_on_first_use=False,  # so that tests and users can capture or change it at any time
    )


def _processors(fmt: str, colors: bool) -> list[Processor]:
    import structlog

    chain: list[Processor] = [structlog.processors.add_log_level]
    if fmt == "console":
        chain.append(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False))
        return [*chain, structlog.dev.ConsoleRenderer(colors=colors)]
    chain += [structlog.processors.TimeStamper(fmt="iso", utc=True), structlog.processors.format_exc_info]
    if fmt == "json":
        return [*chain, structlog.processors.JSONRenderer(default=repr)]
    order = ["timestamp", "level", "event", "logger"]
    return [*chain, _one_line, structlog.processors.LogfmtRenderer(key_order=order, drop_missing=True)]


def _one_line(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Logfmt keeps a record on one line: other values than numbers become text with escaped line ends."""
    for key, value in event.items():
        if not isinstance(value, int | float | bool):
            event[key] = str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return event


class _Bridge(logging.Handler):
    """Brings records of the standard library's loggers (asyncio, grpc) into the same stream and form."""

    def emit(self, record: logging.LogRecord) -> None:
        log = getattr(get_logger(record.name), record.levelname.lower(), get_logger(record.name).warning)
        log(record.getMessage(), exc_info=record.exc_info)
