"""Log records on standard error: as lines of text, or as one JSON object a line."""

from __future__ import annotations

import logging
from typing import Literal

from claimjobs.log_records import JsonFormatter

LogFormat = Literal["text", "json"]


def log_to_stderr(log_format: LogFormat) -> None:
    """Write the records of all loggers on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
