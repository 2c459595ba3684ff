"""Log records keep their fields and their traceback in JSON, and on their way to another process."""

from __future__ import annotations

import json
import logging
import pickle
from datetime import UTC, date, datetime
from typing import Any

import pytest

from claimjobs import log_events
from claimjobs.log_records import JsonFormatter, sendable


class Secret:
    """An object that no other process must make."""

    def __str__(self) -> str:
        return "as text"

    def __reduce__(self) -> Any:
        raise AssertionError("it was sent as an object")


FIELDS = {
    "event": log_events.JOB_DEAD,
    "key": ("a", 7),
    "attempts": 5,
    "at": date(2026, 1, 2),
    "thing": Secret(),
    "instant": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    "rate": float("nan"),
    "level": "not the level",
}


@pytest.fixture
def record() -> logging.LogRecord:
    log = logging.getLogger("claimjobs.settle")
    with pytest.raises(ValueError, match="bad payload") as caught:
        int("bad payload")
    raised = (caught.type, caught.value, caught.tb)
    return log.makeRecord(log.name, logging.ERROR, __file__, 1, "job %s is dead", (7,), raised, extra=FIELDS)


def test_a_line_of_json_has_the_fields_and_the_traceback(record: logging.LogRecord) -> None:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert found["time"].endswith("+00:00")
    assert (found["level"], found["logger"], found["event"]) == ("ERROR", "claimjobs.settle", "job_dead")
    assert (found["message"], found["key"], found["attempts"]) == ("job 7 is dead", ["a", 7], 5)
    assert (found["at"], found["thing"], found["rate"]) == ("2026-01-02", "as text", "nan")
    assert found["instant"] == "2026-01-02T03:04:00+00:00"
    assert "in record\n" in found["traceback"]
    assert found["traceback"].endswith("base 10: 'bad payload'")


def test_a_record_is_the_same_in_another_process(record: logging.LogRecord) -> None:
    sent = logging.makeLogRecord(pickle.loads(pickle.dumps(sendable(record))))
    assert json.loads(JsonFormatter().format(sent)) == json.loads(JsonFormatter().format(record))
    text = logging.Formatter("%(levelname)s: %(message)s")
    assert text.format(sent) == text.format(record)


def test_a_record_of_another_library_has_no_event() -> None:
    found = json.loads(JsonFormatter().format(logging.makeLogRecord({"msg": "hello\nworld", "levelname": "INFO"})))
    assert (found["event"], found["message"], "traceback" in found) == (None, "hello\nworld", False)
