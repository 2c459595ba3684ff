"""Log records as plain data, and as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from claimjobs.key_text import plain, visible, visible_lines

LogFormat = Literal["text", "json"]
"""How records are written on standard error: as lines of text, or as one JSON object a line."""
STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that `logging` gives to a record. All others were given as `extra`."""
SENT: Final = ("name", "levelno", "levelname", "created", "msecs", "process", "processName", "thread", "threadName")
"""The attributes, besides the text, that a record keeps when it is sent to another process."""

_FORMATTER: Final = logging.Formatter()
_OURS: Final = f"{Path(__file__).parent}{os.sep}"
"""The folder of this package."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that the caller gave as `extra`, as plain data."""
    return {name: json_value(value) for name, value in vars(record).items() if name not in STANDARD}


def traceback_of(record: logging.LogRecord) -> str | None:
    """The traceback of the record's exception, from the first line on that is not of claimjobs; None if it has none."""
    if record.exc_text:
        return record.exc_text
    if not record.exc_info or record.exc_info[0] is None:
        return None
    kind, error, trace = record.exc_info
    theirs = trace
    while theirs is not None and theirs.tb_frame.f_code.co_filename.startswith(_OURS):
        theirs = theirs.tb_next
    return _FORMATTER.formatException((kind, error, theirs or trace))


def sendable(record: logging.LogRecord) -> dict[str, Any]:
    """The record for `logging.makeLogRecord` in another process: no object of a user's class must be made there."""
    kept = {name: getattr(record, name) for name in SENT}
    text = {"msg": record.getMessage(), "exc_text": traceback_of(record), "stack_info": record.stack_info}
    return {**fields_of(record), **kept, **text}


def enable_loggers() -> None:
    """Enable our loggers: `logging.config` disables all that exist and are not named, unless it is told otherwise."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "claimjobs" and isinstance(logger, logging.Logger):
            logger.disabled = False


def json_value(value: Any) -> Any:
    """A value that JSON has; as text if it has not."""
    if type(value) in (str, int, bool, type(None)) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, (tuple, list)):
        return [json_value(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): json_value(part) for name, part in value.items()}
    return plain(value)


def log_safely(
    log: logging.Logger, level: int, words: str, *args: object, fields: Mapping[str, Any], raised: object = None
) -> None:
    """Log, also if a filter or a handler of the user's raises: jobs are being settled, and must not stay claimed.

    Texts in the message are made visible, as it may be written by handlers that do not.

    `raised`: the exception whose traceback is logged. Its class may be a user's, and false as a condition.
    """
    trace = (type(raised), raised, raised.__traceback__) if isinstance(raised, BaseException) else None
    shown = (visible(arg) if isinstance(arg, str) else arg for arg in args)
    with contextlib.suppress(Exception):
        log.log(level, words, *shown, extra=fields, exc_info=trace, stacklevel=2)


class JsonFormatter(logging.Formatter):
    """One JSON object a record, on one line: time, level, logger, pid, event, message, the fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields, traceback = fields_of(record), traceback_of(record)
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "event": fields.pop("event", None),
            "message": record.getMessage(),
        }
        return json.dumps({**fields, **found, **({"traceback": traceback} if traceback else {})})


class TextFormatter(logging.Formatter):
    """One line a record, `LEVEL: message`, whatever is in the message; the lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines, without the last end."""
        more = [text for text in (traceback_of(record), record.stack_info) if text]
        return "\n".join([visible(f"{record.levelname}: {record.getMessage()}"), *map(visible_lines, more)])


def stderr_handler(log_format: LogFormat) -> logging.Handler:
    """A handler that writes on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    return handler
