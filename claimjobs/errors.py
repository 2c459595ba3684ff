"""Every error of claimjobs. A message says what happened, to which thing, and what to do next.

Which errors have a class of their own: docs/decisions/0054.
"""

from __future__ import annotations

import copyreg
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from claimjobs.key_text import key_in_message

Quote = Callable[[str], str]
"""Writes a name as the database needs it in a statement: `order`, or a name with capitals, needs quotes."""


class ClaimjobsError(Exception):
    """The base of every error that claimjobs itself raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without this, unpickling would call the constructor with the finished message in place of the thing.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def unique_index(table: str, columns: Sequence[str], quote: Quote) -> str:
    name = "_".join((table.rpartition(".")[2], *columns))
    return f"CREATE UNIQUE INDEX {quote(name)} ON {quoted(table, quote)} ({', '.join(map(quote, columns))})"


def quoted(table: str, quote: Quote) -> str:
    """A table's name, with its schema if it has one."""
    return ".".join(map(quote, table.split(".")))


def first_keys(keys: Sequence[Any]) -> str:
    return ", ".join(key_in_message(key) for key in keys[:3]) + (", ..." if len(keys) > 3 else "")


def column_option(role: str) -> str:
    """The text that tells a user how to name the column of a role: in Python, and in a map file."""
    return f"Columns({role}=...), or [columns] of the --map file"


def state_option(state: str) -> str:
    """The text that tells a user how to name the value of a state: in Python, and in a map file."""
    return f"Columns(states={{{state!r}: ...}}), or [states] of the --map file"


class BadArgument(ClaimjobsError, ValueError):
    """A value that was given, or that a function of the user's returned, cannot be meant."""


class CrossedFork(ClaimjobsError):
    """A Queue, or its Replica, was used in another process than the one that made it."""

    def __init__(self) -> None:
        super().__init__(
            "this Queue, or its Replica, was made in another process: make a Queue in each process, with a Replica of "
            "its own (and start processes with `spawn`)"
        )


FOLDER_GONE: Final = "the working folder was deleted, so no process starts in it: start again in one that exists"


class ReferenceNotFound(ClaimjobsError):
    """No object is found at `MODULE:ATTRIBUTE`."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"{reference!r} cannot be used: {reason}; check the spelling and the folder you are in")


class BadHandler(ClaimjobsError):
    """A handler, or another function of the user's, cannot do its work: its form is wrong, or it fails at once."""


class NothingDecided(ClaimjobsError):
    """A handler returned without an outcome for any job of its batch, or released them all."""


class ExtraMissing(ClaimjobsError, ImportError):
    """A package is not installed that only an optional part of claimjobs needs."""


# --- reaching the database ---------------------------------------------------------------------------------


class ConnectionFailed(ClaimjobsError):
    """claimjobs cannot connect to the database, or cannot work with it."""


class UnknownDatabase(ConnectionFailed):
    """The URL cannot be read, or does not lead to MySQL, MariaDB or Postgres."""


class ServerUnreachable(ConnectionFailed):
    """No server answers at the address of the URL."""


class AccessDenied(ConnectionFailed):
    """The server refused the user, the password or the database."""


class StatementTimedOut(ClaimjobsError):
    """The server ended a statement that exceeded a time limit of the server, also at the last attempt: that is after
    `Liveness.patience`. Work that can be divided has five attempts, and a single row a lease."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"a statement takes too long, and is ended ({reason}): give this account more time (statement_timeout, "
            "max_execution_time, max_statement_time, or a longer lease), or add the index that the statement lacks"
        )


class ReadOnly(ConnectionFailed):
    """The server refused every attempt to write, because it is read-only: it may be a standby since a failover."""

    def __init__(self, table: str | None, reason: str) -> None:
        what = "nothing" if table is None else f"no claim or outcome of table {table!r}"
        super().__init__(
            f"{what} can be written, because the server is read-only ({reason}): check that the URL leads to the "
            "primary, and that neither the server, the database nor the account is set to read-only"
        )


class SessionsShared(ConnectionFailed):
    """A session lock is wanted and cannot work: a pooler shares sessions, or a group does not share locks."""

    def __init__(self, reason: str, instead: str | None = None) -> None:
        """`instead`: what also works, and is not a session lock."""
        other = "a consumer also works by its lease alone (`--session-lock auto`, `Liveness(session_lock=None)`)"
        super().__init__(
            f"a session lock cannot work here: {reason}: connect to the server itself, or set the pool mode of the "
            f"pooler to session; {instead or other}"
        )


class ServerUnfit(ConnectionFailed):
    """The server is too old, is no product that claimjobs knows, or cannot run a statement of this queue."""


class SettingUnfit(ClaimjobsError):
    """A session that claimjobs must not change has a setting with which its statements fail, or read too few rows."""


def setting_unfit(setting: str, change: str) -> SettingUnfit:
    """The error for a setting of a shared session, and the statement that changes it."""
    return SettingUnfit(
        f"sessions of this account have {setting}, with which claimjobs cannot work, and claimjobs changes no setting "
        f"of a session that is shared, or that the handler uses: run `{change}` on each new connection of the engine, "
        "or change the setting for the account"
    )


def session_read_only(table: str, setting: str, change: str) -> SettingUnfit:
    """The error for an engine whose sessions were set to read-only, though the server is not."""
    return SettingUnfit(
        f"no claim of table {table!r} can be written, because sessions of this engine are read-only ({setting}): give "
        f"a consumer an engine without that setting, or let `{change}` be run on each new connection"
    )


def not_consumer(tables: str, reason: str, needed: str) -> AccessDenied:
    """The error for a user that may not read the tables of a queue as a consumer must."""
    return AccessDenied(
        f"this user may not read {tables} ({reason}), as a consumer must, which needs {needed}: give a consumer's "
        "account in the URL, or grant this one what docs/security.md has for a consumer"
    )


# --- tables ------------------------------------------------------------------------------------------------


class UnfitTable(ClaimjobsError):
    """The table is missing, or cannot be used as a queue."""


_WITHOUT_TABLE = ("jobs", "claimjobs_owners", "claimjobs_queues", "claimjobs_batches")
"""What `claimjobs setup-tables` makes if no table is named."""
_DOT = " (the schema is before the last dot; a table with a dot in its own name is described in Python, as a Table)"


class TableMissing(UnfitTable):
    """A table is not in the database: that of jobs, one that queues share, or a side-car."""

    def __init__(self, name: str, *, words: str | None = None, within: str | None = None) -> None:
        """`words`: what makes it, after `setup-tables`; `within`: the table of jobs in whose schema it must be."""
        what = f"table {name!r} is not in this database"
        if within is not None and "." in name:
            what += f", and it must be in the schema of {within!r}"
            step = f"run `claimjobs setup-tables {words or f'--table {shlex.quote(within)}'}`"
        elif words is not None or name in _WITHOUT_TABLE:
            step = f"run `claimjobs setup-tables{'' if words is None else f' {words}'}`, or check the name and the URL"
        else:  # a name alone would make the table of the demonstration
            step = "check the name and the URL; `claimjobs setup-tables --table MODULE:ATTRIBUTE` makes a described one"
            step += _DOT if "." in name else ""
        super().__init__(f"{what}: {step}")


def claims_missing(name: str, source: str, *, chosen: bool = False) -> TableMissing:
    """For a table whose side-car is not in the database. `chosen`: its name, which for a command stands in a map."""
    return TableMissing(name, words="--map FILE" if chosen else f"--table {shlex.quote(source)} --side-car")


class ClaimsDiffer(UnfitTable):
    """Other consumers of the table record their claims in another way: neither would see the other's claims."""


class OwnersOutdated(UnfitTable):
    """A table that queues share lacks a column: an earlier version of claimjobs made it, or somebody dropped it."""


class TableInUse(ClaimjobsError):
    """DDL did not get its lock on a table in time. All later statements on the table would have waited behind it."""


class NotClaimable(UnfitTable):
    """Rows of the table cannot be locked or changed: it is a view, or its engine has no row locks."""

    def __init__(self, table: str, what: str, step: str) -> None:
        super().__init__(f"table {table!r} {what}: {step}")


class DoneUndecided(UnfitTable):
    """`on_done` is not set for a table that claimjobs did not make."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"claimjobs did not make table {table!r}, and on_done does not say what happens to its done jobs: choose "
            "on_done='delete' (--on-done delete), which deletes their rows, 'keep', which needs a value for done, "
            "as in Columns(status='state', states={'unclaimed': ..., 'done': ...}) or [states] of the --map file, "
            "or 'leave', where the handler itself makes the queue's `where` false"
        )


class StillDue(ClaimjobsError):
    """With `on_done="leave"`, too many rows were still due after their handler had returned."""


_TYPES: Final = {
    "status": "VARCHAR(16) NOT NULL DEFAULT 'unclaimed'",
    "owner_id": "INTEGER",
    "priority": "INTEGER NOT NULL DEFAULT 0",
    "attempts": "INTEGER NOT NULL DEFAULT 0",
    "last_error": "TEXT",
    "suspect": "INTEGER NOT NULL DEFAULT 0",
    "run_again": "BOOLEAN NOT NULL DEFAULT FALSE",
}


class ColumnMissing(UnfitTable):
    """A table lacks a column that an operation needs."""

    def __init__(
        self, table: str, column: str, purpose: str, quote: Quote = str, *, mapped_as: str | None = None
    ) -> None:
        """`mapped_as`: the role for which a map names the column."""
        # The type of an instant, and its default in UTC, differ between databases.
        step = (
            f"run `claimjobs setup-tables --table {shlex.quote(table)} --add {column}`, which adds it"
            if column in ("owner_date", "run_at")
            else f"ALTER TABLE {quoted(table, quote)} ADD COLUMN {quote(column)} {_TYPES.get(column, '...')}"
            " -- and in Python, where a Table or a class describes it; then replace all consumers, last the producers"
        )
        why = f"{purpose} needs: {step}" if mapped_as is None else f"{purpose} names as {mapped_as}: check the map"
        super().__init__(f"table {table!r} has no column {column!r}, which {why}")
        self.table = table
        self.column = column


class StateMissing(UnfitTable):
    """No value of the status column means a state that an operation needs."""

    def __init__(self, table: str, column: str, state: str, purpose: str) -> None:
        super().__init__(
            f"no value of column {column!r} of table {table!r} means {state!r}, which {purpose} needs: "
            f"name one, as in {state_option(state)}"
        )


class ColumnUnfit(UnfitTable):
    """A column cannot have its role, its state or its name: a claim could not write it, or nobody could read it."""


class BadMap(ClaimjobsError, ValueError):
    """A map of columns cannot be read, or names a role, a state or a choice that does not exist."""


class KeyUnfit(UnfitTable):
    """The key of a table cannot name its jobs: there is none, no index has it, or a row is not found by it again."""


def key_unequal(table: str, keys: Sequence[Any]) -> KeyUnfit:
    """The error for keys that were read, and do not find their rows again."""
    return KeyUnfit(
        f"the key {first_keys(keys)} was read from table {table!r}, and no row is found by it: its type does not "
        "compare equal to what is read of it (FLOAT, an interval, ...), or each UPDATE changes it (a trigger, ON "
        "UPDATE CURRENT_TIMESTAMP), so no outcome can be written; choose other columns that are unique together as "
        "Columns(key=...)"
    )


def key_unreadable(table: str, text: str) -> KeyUnfit:
    """The error for a key that Python, or its driver, cannot hold, so that nothing names the row."""
    return KeyUnfit(
        f"the key of a row of table {table!r} cannot be read ({text}), and no claim passes it: correct the row, leave "
        "it out with a `where`, or choose other columns as Columns(key=...)"
    )


class BadPredicate(ClaimjobsError):
    """A `where` or an `order_by` is not one whole SQL expression, or the database does not understand it."""


def not_understood(reason: str, *, is_order: bool = False) -> BadPredicate:
    """The error for a predicate, or an order, that the database does not understand."""
    what, form = "predicate", "SQL as after WHERE, for this table"
    if is_order:
        what, form = "order", "the name of a column, `-name` for the highest first, or SQL as after ORDER BY"
    return BadPredicate(
        f"the database does not understand the {what} ({reason}): it is {form}; check its columns and quotes"
    )


# --- jobs, batches and handlers ----------------------------------------------------------------------------


class Unreadable(ClaimjobsError, ValueError):
    """Python, or its driver, cannot hold a value of a row, which `text` describes. If a handler reads that column, only
    that job fails; the other jobs of its batch do not."""

    def __init__(self, key: Any, column: str, text: str) -> None:
        super().__init__(
            f"column {column!r} of the row with the key {key_in_message(key)} cannot be read ({text}): correct the "
            "row, or do not read this column"
        )
        self.key = key
        self.column = column
        self.text = text


class BadRow(ClaimjobsError, ValueError):
    """A row to enqueue does not fit the table. `line` counts from 1; 0: a deferred constraint refused the commit, and
    which row it is about is not known. `row`: as the caller gave it, and the trace context if a column stores that."""

    def __init__(self, line: int, reason: str, row: Any = None) -> None:
        super().__init__(f"row {line}: {reason}" if line else f"one of the rows, refused at the commit: {reason}")
        self.line = line
        self.reason = reason
        self.row = row


class RowsRefused(ClaimjobsError):
    """The database refuses to retry, cancel or delete some rows; the others are written. `keys` names the refused."""

    def __init__(self, table: str, what: str, refused: Mapping[Any, str], others: int) -> None:
        keys = list(refused)
        super().__init__(
            f"{what} is refused for {len(keys)} of {len(keys) + others} rows of table {table!r}, such as "
            f"{first_keys(keys)} ({refused[keys[0]]}); the others are done: mend these rows, or leave them out"
        )
        self.keys = tuple(keys)
        self.others = others


class OutcomeRefused(ClaimjobsError):
    """The database refuses both the outcome of some jobs and the record of their failure.

    All other jobs of the batch are settled. This owner keeps the refused jobs claimed while it lives, so that nobody
    else does them again, and tries to write their failures again every few seconds. `keys` names them.
    """

    def __init__(
        self, table: str, refused: Mapping[Any, str], others: int = 0, *, are_duplicates: bool = False
    ) -> None:
        keys = list(refused)
        step = "mend the row, or what refuses it (a constraint, a trigger, a rule)"
        if are_duplicates:
            step = (
                "they are tried again until the row that has the same values is gone; let the unique index count "
                "claimed jobs as well, so that no such row is enqueued meanwhile"
            )
        super().__init__(
            f"the outcome of job {first_keys(keys)} of table {table!r} cannot be written ({refused[keys[0]]}), nor "
            f"that it failed; {others} others of its batch are settled: {step}"
        )
        self.keys = tuple(keys)
        self.others = others
        self.are_duplicates = are_duplicates
        """Whether a unique index refuses each of them, because another row has its values: that may pass."""


class WriteSwallowed(UnfitTable):
    """A write reached fewer rows than this owner holds, though the database reported no error and no job was lost."""

    def __init__(self, table: str, what: str, counts: tuple[int, int], keys: Sequence[Any] = ()) -> None:
        reached, meant = counts
        named = f" (such as {first_keys(keys)})" if keys else ""
        super().__init__(
            f"{what} of {meant} jobs of table {table!r} reached {reached} of their rows, and no other owner holds the "
            f"others{named}: a trigger or a rule swallows the write, the handler deleted the row by itself, or a key "
            "does not compare equal to what was read of it; change the trigger, the rule or the handler, or choose "
            "other columns as Columns(key=...)"
        )
        self.keys = tuple(keys)


class SettleFailed(ClaimjobsError):
    """The database refuses a settle for a reason that no single row causes. It wrote nothing."""

    def __init__(self, table: str, jobs: int, reason: str) -> None:
        super().__init__(
            f"the outcomes of {jobs} jobs of table {table!r} cannot be written ({reason}): this owner holds them until "
            "it ends; check what its account may do, and what belongs to the table (rules, triggers, views)"
        )


class ClaimRefused(ClaimjobsError):
    """The database refuses to mark rows as claimed: a constraint, a trigger or a policy forbids it."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(
            f"jobs of table {table!r} cannot be marked as claimed ({reason}): change the constraint, the trigger or "
            "the policy that refuses it, keep outcomes in a second table (side_car=True, --side-car), or use "
            "hold='transaction'"
        )


class NoOpenTransaction(ClaimjobsError):
    """A batch was asked for its transaction, and has none, or its transaction has ended."""

    def __init__(self, what: str, step: str = "claim another batch, leave commit to `with batch`, then close") -> None:
        super().__init__(f"this batch {what}: {step}")


class BatchRolledBack(ClaimjobsError):
    """The open transaction of a batch was rolled back: its jobs are free. If it is UNCONFIRMED, or all is committed."""

    UNCONFIRMED: Final = "connection lost in the commit"

    def __init__(
        self, kind: str, *, isolates: bool = False, lost_after: float | None = None, limit: str | None = None
    ) -> None:
        free = "they are claimed again in smaller and smaller batches until the refused job is alone and fails"
        became = f"the writes for its jobs are undone, and {free if isolates else 'they are free'}"
        if kind == self.UNCONFIRMED:
            became = "or all of it is committed: the rows of its jobs say which, and unclaimed ones come again"
        why = kind if lost_after is None else f"{kind} after {lost_after:.1f} s"
        step = "claim another batch"
        if limit is not None:
            why += f"; the server ends such a transaction: {limit}"
            step = "raise this limit for the account, or handle fewer jobs in a batch (--batch-size), or hold='lease'"
        super().__init__(f"the batch was rolled back as a whole ({why}): {became}; {step}")
        self.kind = kind
        self.lost_after = lost_after
        """Seconds from the claim until it was found out that the connection was lost; None: it was not."""
        self.limit = limit
        """The setting of the server that may have ended the transaction, with its value; None: no known one."""
        self.isolates = isolates
        """Whether jobs are suspects, because the database refused a row: the batch does not come again as it was."""


class BatchMisused(ClaimjobsError):
    """A batch was used after it was settled, or left open, or for a job that is not in it or cannot be undone."""


class Fail(Exception):
    """A handler raises it to say how its job failed; `retry=False`: it is dead at once. No error of claimjobs."""

    __reduce__ = ClaimjobsError.__reduce__
    retry_in: float | None = None
    """Seconds until the job runs again; None: after its back-off."""

    def __init__(self, error: str = "the handler failed it", *, retry: bool = True) -> None:
        super().__init__(error)
        self.retry = retry


class RetryLater(Fail):
    """A handler raises it to run its job again in so many seconds. It counts as a failed attempt."""

    def __init__(self, seconds: float, error: str = "the handler wants it later") -> None:
        super().__init__(error)
        self.retry_in = seconds


class NothingDone(ClaimjobsError):
    """All jobs of several batches in a row were released, so draining the queue would never end."""
