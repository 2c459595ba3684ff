"""Every message names its thing and the next step."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from claimjobs import errors
from claimjobs.claim.candidates import key_not_unique
from claimjobs.dialects.postgres.errors import PostgresErrors
from claimjobs.errors import claims_missing
from claimjobs.table import definitions

ROOT = Path(__file__).parents[2]
GIVEN: dict[str, tuple[Any, ...]] = {
    "TableMissing": ("emails",),
    "ColumnMissing": ("emails", "run_at", "retrying"),
    "StateMissing": ("emails", "status", "dead", "keeping dead jobs"),
    "NotClaimable": ("emails", "is stored by MyISAM", "ALTER TABLE emails ENGINE=InnoDB"),
    "WriteSwallowed": ("emails", "the settle", (3, 5), [7]),
    "OutcomeRefused": ("emails", {7: "violates check constraint"}, 4),
    "ClaimRefused": ("emails", "violates check constraint"),
    "SettleFailed": ("emails", 5, "permission denied"),
    "RowsRefused": ("emails", "deleting a dead job", {7: "violates foreign key constraint"}, 4),
    "Unreadable": (7, "due", "'infinity', date"),
    "StatementTimedOut": ("canceling statement due to statement timeout",),
    "SessionsShared": ("another client gets session 7",),
    "ReadOnly": ("emails", "cannot execute UPDATE in a read-only transaction"),
    "NoOpenTransaction": ("is held by lease",),
    "BatchRolledBack": ("deadlock",),
    "CrossedFork": (),
    "DoneUndecided": ("rental",),
    "ReferenceNotFound": ("shop:sned", "no such attribute"),
}
MADE: tuple[Exception, ...] = (
    errors.TableMissing("app.claimjobs_owners", within="app.jobs"),
    errors.claims_missing("emails_claims", "emails"),
    errors.not_consumer("emails", "permission denied", "SELECT on emails"),
    definitions.reserved_name("emails", "claimjobs_me"),
    key_not_unique("emails"),
    errors.key_unequal("emails", [0.1]),
    errors.key_unreadable("emails", "'infinity', date"),
    definitions.not_unique_by("emails", "status"),
    errors.session_read_only("emails", "transaction_read_only = on", "SET SESSION TRANSACTION READ WRITE"),
    errors.setting_unfit("sql_safe_updates = 1", "SET SESSION sql_safe_updates = 0"),
    errors.not_understood("no such column"),
    errors.not_understood("no such column", is_order=True),
)
NEXT_STEP = (
    "upgrade|run `|check |ALTER TABLE|add one|give a|claim another|put the work in|make a Queue|loop over|choose|set "
    "|name |make |write |see `|CREATE UNIQUE INDEX|let it do|return '|call its|pip install|drop it|raise pool_size"
    "|rename it|a queue of its own|change the|mend |correct |give [{`-]|give it|give this|give every"
    "|delete the row|add --|add client|leave out |wait for |end those consumers"
)
ONLY_LOGGED = ("f'no answer within {seconds:g} s",)
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ClaimjobsError)]
WRITTEN_HERE = [kind for kind in CLASSES if "__init__" in vars(kind) and kind is not errors.BadRow]


@pytest.mark.parametrize("kind", WRITTEN_HERE, ids=lambda kind: kind.__name__)
def test_a_message_has_the_next_step(kind: type[Any]) -> None:
    message = str(kind(*GIVEN[kind.__name__]))
    assert re.search(NEXT_STEP, message), message
    assert not message.endswith(".")


@pytest.mark.parametrize("error", MADE, ids=lambda error: str(error)[:40])
def test_a_message_that_is_made_in_one_place_has_the_next_step(error: Exception) -> None:
    assert re.search(NEXT_STEP, str(error)), str(error)


def written_where_it_is_raised() -> Iterator[tuple[str, str]]:
    """The file, and the message, of each error whose message is written where it is raised."""
    plain = {kind.__name__ for kind in CLASSES} - {kind.__name__ for kind in WRITTEN_HERE}
    for file in sorted((ROOT / "claimjobs").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            kind = getattr(getattr(node, "func", None), "id", None)
            arguments = getattr(node, "args", [])
            if kind in plain and arguments and isinstance(arguments[0], (ast.Constant, ast.JoinedStr)):
                yield file.name, ast.unparse(arguments[0])[:-1]


def test_a_message_that_is_written_where_it_is_raised_has_the_next_step() -> None:
    found = [(file, message) for file, message in written_where_it_is_raised() if message not in ONLY_LOGGED]
    assert len(found) > 50
    for file, message in found:
        assert ": " in message or "; " in message, f"{file}: {message}"
        is_a_value = message.endswith("}")  # the step, or what another function says of the error
        assert is_a_value or re.search(NEXT_STEP, message), f"{file}: {message}"
        assert not message.endswith("."), f"{file}: {message}"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_says_what_it_is_for(kind: type[Any]) -> None:
    assert kind.__doc__


def test_what_python_would_raise_can_be_caught_as_that() -> None:
    assert issubclass(errors.BadArgument, ValueError)
    assert issubclass(errors.BadRow, ValueError)


def test_a_row_that_does_not_fit_can_be_asked_for_its_number() -> None:
    error = errors.BadRow(7, "too long", {"d": "x"})
    assert (str(error), error.line, error.reason, error.row) == ("row 7: too long", 7, "too long", {"d": "x"})


@pytest.mark.parametrize(
    "error",
    [
        errors.BadRow(7, "too long", {"d": "x"}),
        errors.CrossedFork(),
        errors.TableMissing("x"),
        errors.BadArgument("no number: give one"),
        errors.Fail("refused", retry=False),
        errors.RetryLater(60, "429 Too Many Requests"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_process(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))


def test_a_command_that_is_suggested_is_quoted_for_a_shell() -> None:
    assert "--table 'my jobs; rm x' --side-car`" in str(claims_missing("my claims", "my jobs; rm x"))
    assert "--table 'my jobs' --add run_at`" in str(errors.ColumnMissing("my jobs", "run_at", "waiting"))


def test_a_table_whose_name_has_a_dot_is_told_how_names_are_read() -> None:
    assert "the schema is before the last dot" in str(errors.TableMissing("shop.mails"))
    assert "dot" not in str(errors.TableMissing("mails"))


def test_an_error_passes_if_another_attempt_may_succeed() -> None:
    deadlock, syntax = psycopg.errors.DeadlockDetected(), psycopg.errors.SyntaxError()
    assert PostgresErrors().passing_kind(sa.exc.OperationalError("", {}, deadlock)) == "deadlock"
    assert PostgresErrors().passing_kind(sa.exc.ProgrammingError("", {}, syntax)) is None
