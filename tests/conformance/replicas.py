"""What consumers with candidates from a replica did, and what they said of it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs import Queue
from servers.server import Server
from tests.conformance.jobs import names


def done_by(queue: Queue, size: int = 5) -> list[str]:
    """Work until nothing is due."""
    seen = []
    for batch in queue.batches(size, drain=True):
        with batch:
            seen += names(batch)
            batch.done()
        assert not batch.lost
    return seen


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if record.name == "claimjobs.replica"]  # type: ignore[attr-defined]


def claimed_and_released(queue: Queue) -> int:
    with queue.claim(1) as batch:
        batch.release()
    return len(batch)


def end_sessions(server: Server) -> None:
    """End all sessions of other clients in the database of the URL."""
    engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
            return
        others = "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
        for number in connection.exec_driver_sql(others).scalars().all():
            connection.exec_driver_sql(f"KILL {number}")
