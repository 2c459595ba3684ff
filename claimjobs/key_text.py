"""What others wrote, as text: keys of jobs, values of columns, errors; in messages, in the log and in a shell."""

from __future__ import annotations

import base64
import csv
import io
import re
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Final
from uuid import UUID

from claimjobs.instants import in_utc

_END: Final = "\r\n"
_HARMFUL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that act on a terminal, end a line, change the direction of the text after them, or are halves of one."""
_INDENT: Final = "    "


def visible(text: str) -> str:
    """A text in one line that does nothing to a terminal: `\\x1b` for an escape, `\\n` for the end of a line.

    What others wrote (a payload, an error, a name, a reason) must not look like our own words, nor hide them.
    """
    return _HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """A text of several lines, each visible and indented, so that none looks like the beginning of a message."""
    return "\n".join(_INDENT + visible(line) for line in text.rstrip("\n").split("\n"))


def plain(value: Any) -> str:
    """A value as text, as in a file for `claimjobs enqueue`: bytes in base64, instants in ISO 8601."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):  # the database has its name, and a command reads that
        return str(value.name)
    return value.isoformat() if isinstance(value, (date, time)) else text_of(value)


def same_text(part: Any) -> str:
    """A part of a key as text, the same for every driver and every description of the table."""
    if isinstance(part, UUID):
        return part.hex
    part = in_utc(part) if isinstance(part, datetime) else part
    return plain(int(part) if isinstance(part, bool) else part)


def text_of(value: Any) -> str:
    """A value as a plain `str`, whatever its class does: a user's `__str__` may raise, or return a class of its own."""
    try:
        return "".join((str(value),))
    except (Exception, SystemExit) as error:
        return f"(str() of this {type(value).__name__} raises {type(error).__name__})"


def key_text(key: Any) -> str:
    """A key as text, as `claimjobs dead retry` takes it: of several columns, a line of CSV such as `eu,17`."""
    if not isinstance(key, tuple):
        return plain(key)
    line = io.StringIO()
    # The writer quotes only line breaks that it writes itself.
    csv.writer(line, lineterminator=_END).writerow(map(plain, key))
    return line.getvalue().removesuffix(_END)


def key_in_message(key: Any) -> str:
    """A key as text, in one line whatever is in it."""
    text = key_text(key)
    return text if text.isprintable() and text else repr(text)
