"""Every sql_mode of a session: jobs are made, enqueued, claimed, settled and counted in each of them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs import Queue, Retry, job_table, make, tables_for
from tests.backends import Backend
from tests.conformance.jobs import dead_jobs

MODAL = job_table(
    "modal",
    sa.MetaData(),
    sa.Column("d", sa.String(20), nullable=False),
    sa.Column("n", sa.Integer, unique=True),
)
ERROR = "never || 'x' \\ \"y\""
FIRST = ("ANSI", "EMPTY_STRING_IS_NULL", "ORACLE", "NO_TABLE_OPTIONS")
"""Those that hide a table's comment, or read an empty text as NULL, before the others."""


OTHERS = (
    *("ALLOW_INVALID_DATES", "ANSI_QUOTES", "DB2", "ERROR_FOR_DIVISION_BY_ZERO", "HIGH_NOT_PRECEDENCE"),
    *("IGNORE_BAD_TABLE_OPTIONS", "IGNORE_SPACE", "MAXDB", "MSSQL", "NO_AUTO_CREATE_USER", "NO_AUTO_VALUE_ON_ZERO"),
    *("NO_BACKSLASH_ESCAPES", "NO_DIR_IN_CREATE", "NO_ENGINE_SUBSTITUTION", "NO_FIELD_OPTIONS", "NO_KEY_OPTIONS"),
    *("NO_UNSIGNED_SUBTRACTION", "NO_ZERO_DATE", "NO_ZERO_IN_DATE", "ONLY_FULL_GROUP_BY", "PAD_CHAR_TO_FULL_LENGTH"),
    *("PIPES_AS_CONCAT", "POSTGRESQL", "REAL_AS_FLOAT", "SIMULTANEOUS_ASSIGNMENT", "STRICT_ALL_TABLES"),
    *("STRICT_TRANS_TABLES", "TIME_ROUND_FRACTIONAL", "TIME_TRUNCATE_FRACTIONAL", "TRADITIONAL", ""),
)


def modes(backend: Backend) -> list[str]:
    """The modes that this server knows, each alone."""
    found = []
    for mode in (*FIRST, *OTHERS):
        with backend.engine.connect() as connection:
            try:
                connection.exec_driver_sql(f"SET SESSION sql_mode = '{mode}'")
            except sa.exc.DBAPIError:
                continue
            finally:
                connection.invalidate()
            found.append(mode)
    return found


@pytest.mark.mariadb("only it has most of the modes that change what we send, or what the server shows")
@pytest.mark.thorough("some fifty modes; the four that had faults are the first of them")
def test_jobs_go_through_in_every_mode_of_the_session(database: Backend) -> None:
    if database.family == "postgres":
        pytest.skip("postgres lacks modes of SQL")
    assert {"ANSI", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "PAD_CHAR_TO_FULL_LENGTH"} <= set(modes(database))
    for mode in modes(database):
        options = {"init_command": f"SET SESSION sql_mode = '{mode}'"}
        engine = database.new_engine(connect_args=options)
        try:
            _go_through(engine)
        except Exception as error:
            error.add_note(f"sql_mode = '{mode}'")
            raise
        finally:
            engine.dispose()


def _go_through(engine: sa.Engine) -> None:
    make(engine, tables_for(MODAL), recreate=True)
    with Queue(engine, MODAL, retry=Retry(attempts=2, base=0)) as queue:
        queue.check()
        queue.enqueue({"d": "0", "n": 0})
        queue.enqueue({"d": f"{n}", "n": n} for n in range(1, 8))
        assert queue.enqueue({"d": "again", "n": 3}, unique="n") == 0
        _settle_in_all_ways(queue)
        for batch in queue.batches(drain="retries"):
            batch.done()
            batch.settle()
        stats = queue.stats()
        assert (stats.unclaimed, stats.claimed, stats.done, stats.dead) == (0, 0, 0, 0)  # it knows its own table
    for claims in ("batches", "transaction"):
        kind = {"hold": "transaction"} if claims == "transaction" else {"claims": "batches"}
        with Queue(engine, MODAL, **kind) as queue:  # type: ignore[arg-type]
            queue.enqueue({"d": f"{n}", "n": n} for n in range(8))
            for batch in queue.batches(drain=True):
                batch.done()
                batch.settle()
            assert queue.report.done == 8


def _settle_in_all_ways(queue: Queue) -> None:
    with queue.claim(4) as batch:
        batch.done(*batch.jobs[:2])
        batch.fail(batch.jobs[2], ERROR, retry=False)
        batch.fail(batch.jobs[3], "again", retry_in=0)
    with queue.claim(3) as batch:
        batch.release(batch.jobs[0])
        batch.done()
    assert [job.last_error for job in dead_jobs(queue)] == [ERROR]
    queue.jobs.retry()
    queue.pause("why")
    assert not queue.claim()
    queue.resume()
