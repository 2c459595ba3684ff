"""`claimjobs upgrade-tables`: numbered steps of SQL. No version has one yet, so the tests make some up."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from claimjobs.admin import upgrade as module
from claimjobs.admin.upgrade import plan, upgrade
from claimjobs.cli import exits, tables
from claimjobs.cli.main import main
from claimjobs.dialects import DIALECTS
from claimjobs.dialects.inspection import SchemaStep
from claimjobs.errors import ClaimjobsError, TableInUse, TableMissing, UnfitTable
from claimjobs.table.create import make
from claimjobs.table.definitions import OWNER_TABLE, SCHEMA, side_car_table
from tests.backends import Backend
from tests.cli.command import claimjobs

ADDED = "ALTER TABLE {table} ADD COLUMN note VARCHAR(16) DEFAULT '100%'"
STEPS = (
    SchemaStep(SCHEMA + 1, "jobs", ADDED),
    SchemaStep(SCHEMA + 2, OWNER_TABLE, ADDED),
    SchemaStep(SCHEMA + 3, "jobs", "CREATE INDEX jobs_note ON {table} (note)"),
)
LAST = SCHEMA + 3


@pytest.fixture
def earlier(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A database with tables of version 1 and a job, for a program with three more steps."""
    backend.make()
    make(backend.engine, [side_car_table("orders_claims", [sa.Column("id", sa.Integer, primary_key=True)])])
    backend.insert("jobs", [{"d": "kept", "e": ""}])
    monkeypatch.setattr(type(backend.dialect.table_rules), "steps", STEPS)
    for place in (module, tables):
        monkeypatch.setattr(place, "SCHEMA", LAST)
    return backend


def columns(backend: Backend, table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(backend.engine).get_columns(table)}


def said(backend: Backend, table: str, comment: str) -> None:
    words = f"COMMENT ON TABLE {table} IS" if backend.family == "postgres" else f"ALTER TABLE {table} COMMENT"
    with backend.engine.begin() as connection:
        connection.exec_driver_sql(f"{words} '{comment}'", execution_options={"no_parameters": True})


def comment_of(backend: Backend, table: str) -> str:
    return str(sa.inspect(backend.engine).get_table_comment(table)["text"])


def test_the_steps_of_all_databases_lead_to_the_schema_of_today() -> None:
    for dialect in DIALECTS.values():
        versions = [step.version for step in dialect.table_rules.steps]
        assert versions == sorted({*versions})
        assert max([1, *versions]) == SCHEMA


def test_tables_of_today_need_nothing(backend: Backend) -> None:
    backend.make()
    assert plan(backend.engine) == []
    assert list(upgrade(backend.engine, plan(backend.engine))) == []


def test_each_table_gets_the_steps_of_its_kind_in_order_and_keeps_its_rows(earlier: Backend) -> None:
    steps = {table.table.name: len(table.changes) for table in plan(earlier.engine)}
    assert steps == {"claimjobs_batches": 1, OWNER_TABLE: 2, "claimjobs_queues": 1, "jobs": 2, "orders_claims": 1}
    assert [table.table.name for table in upgrade(earlier.engine, plan(earlier.engine))] == list(steps)
    assert plan(earlier.engine) == []
    assert [row["note"] for row in earlier.rows("jobs")] == ["100%"]
    assert "note" in columns(earlier, OWNER_TABLE)
    assert "note" not in columns(earlier, "orders_claims")
    assert {comment_of(earlier, name).rpartition(" ")[2] for name in steps} == {str(LAST)}
    with earlier.bare_queue().claim(1) as batch:
        batch.done()


def test_a_table_that_has_had_a_step_does_not_get_it_again(earlier: Backend) -> None:
    """An upgrade that ended between two steps goes on with the second one."""
    earlier.run(ADDED.format(table="jobs"))
    said(earlier, "jobs", f"100% mail, made by claimjobs, schema {SCHEMA + 1}")
    [jobs] = [table for table in plan(earlier.engine) if table.table.name == "jobs"]
    assert ["CREATE INDEX" in statements[0] for statements in jobs.changes] == [True]
    list(upgrade(earlier.engine, plan(earlier.engine)))
    assert comment_of(earlier, "jobs") == f"100% mail, made by claimjobs, schema {LAST}"


def test_a_step_that_is_refused_leaves_those_before_it(earlier: Backend) -> None:
    earlier.run("CREATE INDEX jobs_note ON jobs (d)")
    with pytest.raises(ClaimjobsError, match="database refused `CREATE INDEX jobs_note"):
        list(upgrade(earlier.engine, plan(earlier.engine)))
    assert comment_of(earlier, "jobs").endswith(f"schema {SCHEMA + 1}")
    assert "note" in columns(earlier, "jobs")
    earlier.run("DROP INDEX jobs_note" + ("" if earlier.family == "postgres" else " ON jobs"))
    list(upgrade(earlier.engine, plan(earlier.engine)))
    assert plan(earlier.engine) == []


def test_one_table_of_jobs_at_a_time(earlier: Backend) -> None:
    list(upgrade(earlier.engine, plan(earlier.engine, ["orders_claims"])))
    assert [table.table.name for table in plan(earlier.engine)] == ["jobs"]


def test_a_table_in_use_is_not_waited_for(earlier: Backend) -> None:
    with earlier.new_engine().begin() as other:
        other.execute(sa.text("SELECT * FROM jobs"))
        with pytest.raises(TableInUse, match="table 'jobs' was not free within 2 s"):
            list(upgrade(earlier.engine, plan(earlier.engine)))
    list(upgrade(earlier.engine, plan(earlier.engine)))
    assert plan(earlier.engine) == []


def test_tables_of_a_later_version_are_left_alone(backend: Backend) -> None:
    backend.make()
    said(backend, "jobs", f"made by claimjobs, schema {SCHEMA + 1}")
    with pytest.raises(UnfitTable, match=f"'jobs' has schema {SCHEMA + 1}.*upgrade with the later version"):
        plan(backend.engine)


def test_a_table_of_a_user_is_never_altered(earlier: Backend) -> None:
    earlier.run("CREATE TABLE mails (id INTEGER PRIMARY KEY, priority INTEGER)")
    assert "mails" not in {table.table.name for table in plan(earlier.engine)}
    with pytest.raises(UnfitTable, match=r"'mails' was not made by claimjobs.*setup-tables --table mails"):
        list(upgrade(earlier.engine, plan(earlier.engine, ["mails"])))


def test_a_database_without_tables_names_the_command_that_makes_them(backend: Backend) -> None:
    with pytest.raises(TableMissing, match="run `claimjobs setup-tables`"):
        plan(backend.engine)


def test_the_command_says_prints_and_runs_what_is_needed(earlier: Backend) -> None:
    def ended(*words: str) -> Result:
        return CliRunner().invoke(main, ["upgrade-tables", *words, "--url", earlier.url])

    checked = ended("--check")
    assert checked.exit_code == exits.OUTDATED
    assert f"jobs: schema {SCHEMA}; 2 steps to schema {LAST}\n" in checked.output
    assert ended().exit_code == exits.USAGE
    printed = ended("--sql").output
    assert "jobs ADD COLUMN note" in printed
    assert "note" not in columns(earlier, "jobs")
    run = ended("--yes")
    assert run.exit_code == exits.OK
    assert run.output.endswith(f"orders_claims: schema {SCHEMA} to {LAST}\n")
    assert (ended("--check").exit_code, ended("--sql").output) == (exits.OK, "")


def test_the_command_has_nothing_to_do_today(database: Backend) -> None:
    database.make()
    ended = claimjobs("upgrade-tables", "--yes", "--url", database.url)
    assert (ended.code, ended.out) == (exits.OK, f"nothing to do: all tables have schema {SCHEMA}\n")
