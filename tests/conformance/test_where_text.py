"""Predicates given as a piece of SQL."""

from __future__ import annotations

import sqlalchemy as sa

from tests.backends import Backend
from tests.conformance.jobs import jobs, names


def test_a_predicate_may_be_a_piece_of_sql(backend: Backend) -> None:
    queue = backend.queue(where=sa.text("d like '%2' or d like '%4'"))
    queue.enqueue(jobs(6))
    with queue.claim() as batch:
        assert names(batch) == ["0002", "0004"]


def test_a_piece_of_sql_with_or_does_not_reach_claimed_jobs(backend: Backend) -> None:
    queue = backend.queue(where=sa.text("d = '0000' or d = '0001'"))
    queue.enqueue(jobs(2))
    with queue.claim(1) as first, queue.claim() as second:
        assert names(first) == ["0000"]
        assert names(second) == ["0001"]
        assert not queue.claim()
