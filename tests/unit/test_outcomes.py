"""Outcomes: what is said of them knows each kind, also one that is added."""

from __future__ import annotations

from typing import Any

import pytest

from claimjobs.report import Report
from claimjobs.settle.outcomes import OUTCOME_KINDS, Outcomes
from claimjobs.statements.settle import Failure

GIVEN: dict[str, Any] = {"done": None, "released": None}
"""The values of an outcome. All other kinds have a failure."""


def one(kind: str) -> Outcomes:
    """The outcomes of one job."""
    outcomes = Outcomes()
    outcomes.kinds[kind]["key"] = GIVEN.get(kind, Failure("why"))
    return outcomes


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
def test_a_job_counts_whatever_its_outcome_is(kind: str) -> None:
    outcomes, report = one(kind), Report()
    outcomes.count(report)
    assert (outcomes.keys(), len(outcomes), bool(outcomes)) == (["key"], 1, True)
    assert report == Report(**{kind: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
def test_a_batch_of_one_kind_is_no_batch_of_another(kind: str) -> None:
    outcomes = one(kind)
    assert (outcomes.are_done_at_once, outcomes.only_released) == (kind == "done", kind == "released")
    outcomes.add(Outcomes(done={"other": None}, released={"third": None}))
    assert not outcomes.are_done_at_once
    assert not outcomes.only_released


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
def test_jobs_that_have_not_ended_are_given_back(kind: str) -> None:
    assert one(kind).gives_back == (kind not in {"done", "dead"})


def test_values_of_columns_are_more_than_done() -> None:
    outcomes = Outcomes(done={"key": None}, columns={"key": {"result": "sent"}})
    assert not outcomes.are_done_at_once
    assert outcomes.only(["key"]).columns == outcomes.columns
    outcomes.forget("key")
    assert outcomes == Outcomes()
