"""Fixtures for pytest, which finds them by itself where claimjobs is installed.

The server is that of CLAIMJOBS_TEST_URL, whose account must be able to make databases; without it, an embedded Postgres
of its own for the run, which waits for no disk and is gone at the end, also of a run that is killed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def claimjobs_server() -> Iterator[str]:
    """The URL, with its driver, of a server for the tests of this run, whose account may make databases."""
    # A run that uses no fixture waits for no import.
    from claimjobs.database.connect import parse  # noqa: PLC0415
    from claimjobs.embedded.server import EmbeddedFailed, temporary  # noqa: PLC0415

    if url := os.environ.get("CLAIMJOBS_TEST_URL"):
        yield parse(url).render_as_string(hide_password=False)
        return
    try:
        with temporary() as url:
            yield url
    except EmbeddedFailed as error:
        pytest.fail(f"{error} (tests use the server of CLAIMJOBS_TEST_URL, not that of CLAIMJOBS_URL)", pytrace=False)


@pytest.fixture
def claimjobs_database(claimjobs_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL, with its driver, of an empty database for this test alone; CLAIMJOBS_URL has it, while the test runs."""
    from claimjobs.database.connect import connected, engine_of, parse  # noqa: PLC0415 - as above
    from claimjobs.dialects import dialect_named_by  # noqa: PLC0415

    engine, name = engine_of(claimjobs_server), f"claimjobs_test_{secrets.token_hex(6)}"
    try:
        with connected(engine) as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql(f"CREATE DATABASE {engine.dialect.identifier_preparer.quote(name)}")
        try:
            url = parse(claimjobs_server).set(database=name).render_as_string(hide_password=False)
            monkeypatch.setenv("CLAIMJOBS_URL", url)
            yield url
        finally:
            with connected(engine) as connection:  # with the sessions in it
                connection.execution_options(isolation_level="AUTOCOMMIT")
                dialect_named_by(engine).sessions.drop_database(connection, name)
    finally:
        engine.dispose()
