"""Every message names its thing and the next step."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from claimjobs import errors

GIVEN: dict[str, tuple[Any, ...]] = {
    "ServerTooOld": ("MySQL", "5.7.44", "8.0.13"),
    "ServerUnknown": ("postgresql://h/d", "Could not determine version from string 'CockroachDB'", "Postgres"),
    "ServerLacks": ("emails", "find and lock", "JSON_TABLE does not exist", "MySQL 8.0.13"),
    "TableMissing": ("emails",),
    "ClaimsMissing": ("emails_claims", "emails"),
    "ColumnMissing": ("emails", "run_at", "retrying"),
    "MapsDiffer": ("jobs", '{"batches": ["id"]}', '{"batches": ["nr"]}', 1),
    "SharedTableMissing": ("app.claimjobs_owners", "app.jobs"),
    "ClaimsDiffer": ("emails", "batches", 2),
    "TablesNewer": ("emails", 3, 2),
    "UpgradeStopped": ("emails", "ALTER TABLE emails", "duplicate column"),
    "TableInUse": ("emails", 2, "session 7 (shop, pg_dump)"),
    "NotConsumer": ("emails", "permission denied", "SELECT on emails"),
    "OwnersOutdated": ("claimjobs_owners", "beat"),
    "NoPrimaryKey": ("emails",),
    "SideCarThere": ("emails", "owner_id", "emails_claims"),
    "NotInTable": ("emails", "colour", "status"),
    "StateMissing": ("emails", "status", "dead", "keeping dead jobs"),
    "StatesClash": ("emails", "status", ("unclaimed", "done"), 0),
    "StateUnfit": ("emails", "status", ("done", "finished"), "holds 'new', 'sent'"),
    "ColumnUnfit": ("emails", "owner_id", ("owner", "UUID"), ("a whole number", "ALTER TABLE emails ADD COLUMN")),
    "CounterBehind": ("emails", "id", "SELECT setval('emails_id_seq', 7)"),
    "KeyIndexGone": ("emails", "Key 'by_a' does not exist"),
    "KeyNotIndexed": ("emails", ["a", "b"]),
    "KeyNotUnique": ("emails",),
    "Inherited": ("emails", "old_emails"),
    "NotClaimable": ("emails", "is stored by MyISAM", "ALTER TABLE emails ENGINE=InnoDB"),
    "OwnTable": ("claimjobs_owners",),
    "ReservedName": ("emails", "claimjobs_me"),
    "KeyUnfit": ("emails", "price", "FLOAT"),
    "RoleInKey": ("emails", "status", "status", "key"),
    "RoleComputed": ("emails", "status", "status"),
    "KeyUnequal": ("emails", [0.1]),
    "WriteSwallowed": ("emails", "the settle", (3, 5), [7]),
    "OutcomeRefused": ("emails", {7: "violates check constraint"}, 4),
    "ClaimRefused": ("emails", "violates check constraint"),
    "SettleFailed": ("emails", 5, "permission denied"),
    "OwnerDeclaredDead": ("emails", 5),
    "RowsRefused": ("emails", "deleting a dead job", {7: "violates foreign key constraint"}, 4),
    "Unreadable": (7, "due", "'infinity', date"),
    "KeyUnreadable": ("emails", "'infinity', date"),
    "StatementTimedOut": ("canceling statement due to statement timeout",),
    "NotAKey": ("emails", ["region", "number"], 7),
    "BadUnique": ("emails", "status"),
    "NotUnique": ("emails", ("customer", "hour")),
    "NoAssignee": ("workers",),
    "OtherIndex": ("workers", "workers_name", "duplicate entry 'a'"),
    "NotExclusive": ("workers", ["task"]),
    "SessionsNotOurs": (),
    "SeveralPrimaries": ("emails", "claims='batches'", "--claims rows (claims='rows')"),
    "SessionsShared": ("another client gets session 7",),
    "ReadOnly": ("emails", "cannot execute UPDATE in a read-only transaction"),
    "SessionReadOnly": ("emails", "transaction_read_only = on", "SET SESSION TRANSACTION READ WRITE"),
    "SettingUnfit": ("sql_safe_updates = 1", "SET SESSION sql_safe_updates = 0"),
    "NoOpenTransaction": ("is held by lease",),
    "DatabaseMissing": ("postgresql://h/d", "no database d"),
    "PoolerUnfit": ("postgresql://h/d", "no transactions"),
    "BatchRolledBack": ("deadlock",),
    "TooLate": (7,),
    "BadPredicate": ("no such column",),
    "BadOrder": ("no such column",),
    "NotOneExpression": ("predicate", "the quote at character 5 is never closed"),
    "BadSize": (0,),
    "NotPurgeable": ("emails_claims", "emails"),
    "BatchSettled": (),
    "BatchNotSettled": (),
    "NotInBatch": (7,),
    "CrossedFork": (),
    "FolderGone": (),
    "PoolUnfit": ("one connection for two users",),
    "NothingDecided": ("shop:send",),
    "ExtraMissing": ("metrics", "prometheus_client"),
    "PortUnusable": ("127.0.0.1", 80, "Permission denied"),
    "NoWakeTrigger": ("MySQL", "its triggers run before the commit"),
    "SetupFailed": ("shop.model:loaded", "ConnectionError: no model here"),
    "UnfinishedHandler": ("shop:send", "a coroutine"),
    "NoTransaction": ("an object of sqlalchemy.engine.base.Engine", "give a Connection"),
    "BadOnDone": ("'kept'",),
    "DoneUndecided": ("rental",),
    "StillDue": ("rental", 1_001),
    "NothingDone": (5, "the handler decided nothing: loop over the batch"),
    "ReferenceNotFound": ("shop:sned", "no such attribute"),
}
NEXT_STEP = (
    "upgrade|run `|check |ALTER TABLE|add one|give a|claim another|put the work in|make a Queue|loop over|choose|set "
    "|use lock=|name columns|make the Queue|name one|CREATE UNIQUE INDEX|let it do|return '"
    "|name other|name another|rename it|a queue of its own|change the|mend |correct the|give it|give this"
    "|delete the row|add --|leave out |wait for "
)
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ClaimjobsError)]
WRITTEN_HERE = [kind for kind in CLASSES if "__init__" in vars(kind) and kind is not errors.BadRow]


@pytest.mark.parametrize("kind", WRITTEN_HERE, ids=lambda kind: kind.__name__)
def test_a_message_has_the_next_step(kind: type[Any]) -> None:
    import re

    message = str(kind(*GIVEN[kind.__name__]))
    assert re.search(NEXT_STEP, message), message
    assert not message.endswith(".")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_says_what_it_is_for(kind: type[Any]) -> None:
    assert kind.__doc__


def test_what_python_would_raise_can_be_caught_as_that() -> None:
    assert issubclass(errors.BadSize, ValueError)
    assert issubclass(errors.BadRow, ValueError)
    assert issubclass(errors.NotPurgeable, ValueError)
    assert issubclass(errors.NotInBatch, LookupError)


def test_a_row_that_does_not_fit_can_be_asked_for_its_number() -> None:
    error = errors.BadRow(7, "too long", {"d": "x"})
    assert (str(error), error.line, error.reason, error.row) == ("row 7: too long", 7, "too long", {"d": "x"})


@pytest.mark.parametrize(
    "error",
    [errors.BadRow(7, "too long", {"d": "x"}), errors.BatchSettled(), errors.TableMissing("x"), errors.BadSize(0)],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_process(error: Exception) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_command_that_is_suggested_is_quoted_for_a_shell() -> None:
    assert "--table 'my jobs; rm x'`" in str(errors.TableMissing("my jobs; rm x"))
    assert "--table 'my jobs'`" in str(errors.ColumnMissing("my jobs", "run_at", "waiting"))


def test_a_table_whose_name_has_a_dot_is_told_how_names_are_read() -> None:
    assert "the schema is before the last dot" in str(errors.TableMissing("shop.mails"))
    assert "dot" not in str(errors.TableMissing("mails"))
