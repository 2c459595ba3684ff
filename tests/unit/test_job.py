"""A job is a row to be read."""

from __future__ import annotations

import copy
import pickle
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from claimjobs import Job
from claimjobs.errors import OutcomeRefused, key_unequal

JOB = Job(7, {"id": 7, "address": "a@b", "key": "its own", "items": 3})


def test_columns_are_items_and_attributes() -> None:
    assert JOB["address"] == JOB.address == "a@b"
    assert JOB.key == 7
    assert JOB["key"] == "its own"
    assert dict(JOB) == {"id": 7, "address": "a@b", "key": "its own", "items": 3}
    assert (len(JOB), list(JOB), "address" in JOB) == (4, ["id", "address", "key", "items"], True)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (7, "7"),
        ("a,b", "a,b"),
        ("a\nb", r"'a\nb'"),
        ("", "''"),
        (b"\0", "AA=="),
        (("a,b", 7), '"a,b",7'),
        (("a", "b\r\nc"), repr('a,"b\r\nc"')),
        ((6, datetime(2026, 11, 23, 22, 53, tzinfo=UTC)), "6,2026-11-23T22:53:00+00:00"),
    ],
)
def test_a_message_names_it_by_its_key_as_the_commands_take_it(key: Any, text: str) -> None:
    with pytest.raises(AttributeError, match=f"^job {re.escape(text)} has no column 'colour'"):
        _ = Job(key, {}).colour
    assert str(key_unequal("jobs", [key])).startswith(f"the key {text} was read")
    assert f"the outcome of job {text} of table" in str(OutcomeRefused("emails", {key: "too long"}))


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="job 7 has no column 'colour'"):
        _ = JOB.colour
    with pytest.raises(KeyError):
        _ = JOB["colour"]
    assert JOB.get("colour", "red") == "red"
    assert not hasattr(JOB, "colour")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_can_be_sent_to_another_process(protocol: int) -> None:
    sent = pickle.loads(pickle.dumps(JOB, protocol))
    assert (sent.key, dict(sent)) == (JOB.key, dict(JOB))


def test_it_can_be_copied() -> None:
    for twin in (copy.copy(JOB), copy.deepcopy(JOB)):
        assert (twin.key, dict(twin)) == (JOB.key, dict(JOB))


def test_a_job_is_itself_and_no_other_claim_of_its_row() -> None:
    assert Job(7, {}) != Job(7, {})
    assert len({JOB, JOB}) == 1


def test_its_repr_shows_its_key_and_not_its_payload() -> None:
    assert repr(JOB) == "<Job 7>"
    assert repr(Job(("a", 1), {})) == "<Job ('a', 1)>"
