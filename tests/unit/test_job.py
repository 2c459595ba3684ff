"""A job is a row to be read."""

from __future__ import annotations

import copy
import pickle

import pytest

from claimjobs import Job

JOB = Job(7, {"id": 7, "address": "a@b", "key": "its own", "items": 3})


def test_columns_are_items_and_attributes() -> None:
    assert JOB["address"] == JOB.address == "a@b"
    assert JOB.key == 7
    assert JOB["key"] == "its own"
    assert dict(JOB) == {"id": 7, "address": "a@b", "key": "its own", "items": 3}
    assert (len(JOB), list(JOB), "address" in JOB) == (4, ["id", "address", "key", "items"], True)


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
