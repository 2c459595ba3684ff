"""What can go wrong, to which thing, and the next step. Every message ends in what to do."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

Quote = Callable[[str], str]
"""How a database has a name written in a statement: an `order`, or a name with capitals, needs quotes of its own."""


def _unique_index(table: str, columns: Sequence[str], quote: Quote) -> str:
    name = "_".join((table.rpartition(".")[2], *columns))
    return f"CREATE UNIQUE INDEX {quote(name)} ON {_quoted(table, quote)} ({', '.join(map(quote, columns))})"


def _quoted(table: str, quote: Quote) -> str:
    return ".".join(map(quote, table.split(".")))


def _some(keys: Sequence[Any]) -> str:
    return ", ".join(repr(key) for key in keys[:3]) + (", ..." if len(keys) > 3 else "")


class ClaimjobsError(Exception):
    """Anything that claimjobs raises of its own accord."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A constructor here takes the thing and not the message: unpickled by it, a message would hold itself.
        return _unpickled, (type(self), self.args, vars(self))


def _unpickled(kind: type[ClaimjobsError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ClaimjobsError:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


# --- reaching the database -------------------------------------------------------------------------------


class ConnectionFailed(ClaimjobsError):
    """No connection to the database could be had."""


class UnknownDatabase(ConnectionFailed):
    """The URL does not lead to MySQL, MariaDB or Postgres, or cannot be read."""


class DriverMissing(ConnectionFailed):
    """The Python driver that the URL names is not installed."""


class DriverUnsupported(UnknownDatabase):
    """The URL, or the engine, has a driver that claimjobs does not work with. The message names those that do."""


class ServerUnreachable(ConnectionFailed):
    """Nothing answers where the URL points."""


class AccessDenied(ConnectionFailed):
    """The server refused the user, the password or the database."""


class PoolerUnfit(ConnectionFailed):
    """The pooler in front of the server gives each statement another session, so that there are no transactions."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"{url}: the pooler allows no transactions ({reason}): set its pool mode to transaction or session for "
            "this database, or connect to the server itself"
        )


class StatementTimedOut(ClaimjobsError):
    """The server ended a statement because it took longer than the server lets it, each time that it was tried."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the server ends statements that take too long ({reason}): give this account more time "
            "(statement_timeout, max_execution_time, max_statement_time), or add the index that the statement lacks"
        )


class ServerTooOld(ConnectionFailed):
    """The server lacks what a claim is made of."""

    def __init__(self, title: str, found: str, needed: str) -> None:
        super().__init__(
            f"{title} {found} cannot claim with SKIP LOCKED: upgrade the server to {title} {needed} or later"
        )


# --- the table -------------------------------------------------------------------------------------------


class UnfitTable(ClaimjobsError):
    """The table is not there, or is not (yet) a queue."""


class TableMissing(UnfitTable):
    """A table is not in the database."""

    def __init__(self, name: str) -> None:
        hints = {"jobs": "", "claimjobs_owners": "", "claimjobs_ledger": " --ledger"}
        hint = hints.get(name, f" --table {shlex.quote(name)}")
        super().__init__(
            f"table {name!r} is not in this database: run `claimjobs setup-tables{hint}`, or check the name and the URL"
        )


class ClaimsMissing(TableMissing):
    """The table of claims that belongs to a table is not in the database."""

    def __init__(self, name: str, source: str) -> None:
        UnfitTable.__init__(
            self,
            f"table {name!r}, for the claims on {source!r}, is not in this database: "
            f"run `claimjobs setup-tables --table {shlex.quote(source)} --side-car`",
        )


class ColumnMissing(UnfitTable):
    """A table lacks a column that is needed for what was asked."""

    TYPES: ClassVar[dict[str, str]] = {
        "status": "VARCHAR(16) NOT NULL DEFAULT 'unclaimed'",
        "owner_id": "INTEGER",
        "priority": "INTEGER NOT NULL DEFAULT 0",
        "attempts": "INTEGER NOT NULL DEFAULT 0",
        "last_error": "TEXT",
        "suspect": "INTEGER NOT NULL DEFAULT 0",
        "assignee": "INTEGER UNIQUE",
    }

    def __init__(self, table: str, column: str, purpose: str, quote: Quote = str) -> None:
        # A type for an instant, and UTC by default, have another name in every database.
        step = (
            f"run `claimjobs setup-tables --table {shlex.quote(table)}`, which shows the statement that adds it"
            if column in ("owner_date", "run_at")
            else f"ALTER TABLE {_quoted(table, quote)} ADD COLUMN {quote(column)} {self.TYPES.get(column, '...')}"
        )
        super().__init__(f"table {table!r} has no column {column!r}, which {purpose} needs: {step}")
        self.table = table
        self.column = column


class OwnersOutdated(UnfitTable):
    """The table of owners was made by an earlier version."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            f"table {table!r} is of an earlier version, it has no column {column!r}: run `claimjobs setup-tables`, "
            "which shows the statements that bring it up to date"
        )


class NoPrimaryKey(UnfitTable):
    """A table has no primary key, so a job cannot be named."""

    def __init__(self, table: str) -> None:
        super().__init__(f"table {table!r} has no primary key to name a job by: add one, or choose another table")


class NotInTable(ColumnMissing):
    """A map names a column that the table has not."""

    def __init__(self, table: str, column: str, role: str) -> None:
        UnfitTable.__init__(
            self, f"table {table!r} has no column {column!r}, which its column map names as {role}: check the map"
        )
        self.table = table
        self.column = column


class StateMissing(UnfitTable):
    """No value of a status column means a state that is needed for what was asked."""

    def __init__(self, table: str, column: str, state: str, purpose: str) -> None:
        super().__init__(
            f"no value of column {column!r} of table {table!r} means {state!r}, which {purpose} needs: "
            f"name one, as in Columns(states={{{state!r}: ...}}) or --state {state}=VALUE"
        )


class StatesClash(UnfitTable):
    """Two states are told by the same value, and nothing else tells them apart."""

    def __init__(self, table: str, column: str, states: tuple[str, str], value: Any) -> None:
        first, second = states
        super().__init__(
            f"{first!r} and {second!r} are both {value!r} in column {column!r} of table {table!r}, so that nothing "
            f"tells them apart: choose another value for one of them, or leave {second!r} out of the states"
        )


class StateUnfit(UnfitTable):
    """A status column cannot hold the value that is to mean a state: no row would ever be in it."""

    def __init__(self, table: str, column: str, meant: tuple[str, Any], holds: str) -> None:
        state, value = meant
        super().__init__(
            f"column {column!r} of table {table!r} cannot hold {value!r}, which is to mean {state!r}: it {holds}; "
            f"check the value, as in Columns(states={{{state!r}: ...}}) or --state {state}=VALUE"
        )


class ColumnUnfit(UnfitTable):
    """A column cannot hold what its role has written into it."""

    def __init__(self, table: str, role: str, found: tuple[str, str], needed: tuple[str, str]) -> None:
        (column, type_), (what, step) = found, needed
        super().__init__(
            f"column {column!r} of table {table!r} is {type_}, and as {role} it must be {what}: name another one, "
            f"as in Columns({role}=...) or --column {role}=NAME; to add one: {step}"
        )


class NotClaimable(UnfitTable):
    """Rows of this kind of table cannot be locked, or not be changed: it is a view, or its engine has no row locks."""

    def __init__(self, table: str, what: str, step: str) -> None:
        super().__init__(f"table {table!r} {what}: {step}")


class ReservedName(UnfitTable):
    """A column of the table has a name that the statements of claimjobs use for a parameter."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r} has a name that claimjobs uses for a parameter of its own: rename it"
        )


class KeyUnfit(UnfitTable):
    """A column of the key is of a type whose values, once read, do not find their row again."""

    def __init__(self, table: str, column: str, type_: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r}, which is part of its key, is {type_}: the value that is read of "
            "such a column need not be equal to the one that it holds, so that a job would not be found again; name "
            "other columns that are unique together, as in Columns(key=...) or --column key=NAME"
        )


class RoleInKey(UnfitTable):
    """A claim would change the key of its row, or the partition that it is in."""

    def __init__(self, table: str, column: str, role: str, where: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r} is part of its {where}, and as {role} each claim would change it: "
            f"name another column, as in Columns({role}=...) or --column {role}=NAME, or keep claims apart "
            "(side_car=True, --side-car)"
        )


class RoleComputed(UnfitTable):
    """A column that claimjobs has to write is computed by the database."""

    def __init__(self, table: str, column: str, role: str) -> None:
        super().__init__(
            f"column {column!r} of table {table!r} is a generated column, and as {role} claimjobs must write it: "
            f"name another column, as in Columns({role}=...) or --column {role}=NAME"
        )


class NoAssignee(UnfitTable):
    """An assignment was asked for, and no column holds the worker."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"no column of table {table!r} is said to hold the worker that a row is assigned to: name one, unique and "
            "NULL in a free row, as in Columns(assignee=...)"
        )


class NotExclusive(UnfitTable):
    """Nothing in the database keeps a value from standing in two rows."""

    def __init__(self, table: str, columns: list[str], quote: Quote = str) -> None:
        super().__init__(
            f"{', '.join(columns)} of table {table!r} has no unique index of its own, so that one worker could have "
            f"two rows, or one row two workers: {_unique_index(table, columns, quote)}"
        )


class OtherIndex(ClaimjobsError, ValueError):
    """A row cannot be assigned, or paired, because of a unique index that is about something else."""

    def __init__(self, table: str, index: str, reason: str) -> None:
        super().__init__(
            f"another unique index of table {table!r}, {index!r}, refuses this row ({reason}): give a value that it "
            "has not, or a `where` that leaves such rows out"
        )


class KeyNotIndexed(UnfitTable):
    """The columns that name a row are not at the head of an index: each claim would read, or lock, the whole table."""

    def __init__(self, table: str, columns: list[str], quote: Quote = str) -> None:
        super().__init__(
            f"no index of table {table!r} begins with its key, {', '.join(columns)}: "
            f"{_unique_index(table, columns, quote)}"
        )


class KeyNotUnique(UnfitTable):
    """Two rows of a table have the same key."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"two rows of table {table!r} have the same key, so that neither can be named: "
            "choose columns that are unique together as Columns(key=...)"
        )


class Inherited(KeyNotUnique):
    """Other tables inherit from this one: its keys say nothing of their rows, which are read with its own."""

    def __init__(self, table: str, child: str) -> None:
        UnfitTable.__init__(
            self,
            f"table {child!r} inherits from table {table!r}, and nothing keeps a row of it from having the key of "
            f"another row: make {table!r} a partitioned table, or give each of its children a queue of its own",
        )


class KeyUnequal(UnfitTable):
    """A key that was read does not find its row again."""

    def __init__(self, table: str, keys: Sequence[Any]) -> None:
        super().__init__(
            f"the key {_some(keys)} was read from table {table!r}, and no row is found by it: its type does not "
            "compare equal to what is read of it (FLOAT, an interval, ...), and it cannot be claimed; choose other "
            "columns that are unique together as Columns(key=...)"
        )


class WriteSwallowed(UnfitTable):
    """A write reached fewer rows than are in hand: it was not lost to anybody, and the database says no error."""

    def __init__(self, table: str, what: str, counts: tuple[int, int], keys: Sequence[Any] = ()) -> None:
        reached, meant = counts
        named = f" (such as {_some(keys)})" if keys else ""
        super().__init__(
            f"{what} of {meant} jobs of table {table!r} reached {reached} of their rows, and the others{named} are "
            "in no other hand: a trigger or a rule swallows the write, the handler deleted the row by itself, or a key "
            "does not compare equal to what was read of it; change the trigger, the rule or the handler, or choose "
            "other columns as Columns(key=...)"
        )
        self.keys = tuple(keys)


class OutcomeRefused(ClaimjobsError):
    """The database does not take the outcome of some jobs, nor that they failed. All others of the batch are settled.

    These stay in this owner's hand, so that they are not done again while it lives. `keys` names them.
    """

    def __init__(self, table: str, refused: Mapping[Any, str], others: int = 0) -> None:
        keys = list(refused)
        super().__init__(
            f"the outcome of job {_some(keys)} of table {table!r} cannot be written ({refused[keys[0]]}), nor that it "
            f"failed; {others} others of its batch are settled: mend the row, or what refuses it (a constraint, a "
            "trigger, a rule)"
        )
        self.keys = tuple(keys)
        self.others = others


class SettleFailed(ClaimjobsError):
    """The database does not take what a settle sends, whatever the row. Nothing of it was written."""

    def __init__(self, table: str, jobs: int, reason: str) -> None:
        super().__init__(
            f"the outcomes of {jobs} jobs of table {table!r} cannot be written ({reason}): they stay in hand until "
            "this owner leaves; check what its account may do, and what belongs to the table (rules, triggers, views)"
        )


class OwnerDeclaredDead(ClaimjobsError):
    """An owner was declared dead again and again, each time before it could claim anything."""

    def __init__(self, table: str, times: int) -> None:
        super().__init__(
            f"this owner of jobs of table {table!r} was declared dead {times} times in a row before it could claim: "
            "give it a longer lease, or find out who declares it dead (another clock, a cleaning job of your own)"
        )


class RowsRefused(ClaimjobsError):
    """The database does not let some rows be deleted, or brought back. All others are. `keys` names them."""

    def __init__(self, table: str, what: str, refused: Mapping[Any, str], others: int) -> None:
        keys = list(refused)
        super().__init__(
            f"{what} is refused for {len(keys)} of {len(keys) + others} rows of table {table!r}, such as {_some(keys)} "
            f"({refused[keys[0]]}); the others are done: mend these rows, or leave them out"
        )
        self.keys = tuple(keys)
        self.others = others


class NotUnique(UnfitTable):
    """Rows are to be enqueued by a unique key that the table does not have."""

    def __init__(self, table: str, columns: tuple[str, ...], quote: Quote = str) -> None:
        super().__init__(
            f"table {table!r} has no unique index over {', '.join(columns)}, so nothing keeps a second such job out: "
            f"{_unique_index(table, columns, quote)}"
        )


class DoneUndecided(UnfitTable):
    """Nobody has said what becomes of the done jobs of a table that claimjobs did not make."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"claimjobs did not make table {table!r}, and nobody has said what becomes of its done jobs: choose "
            "on_done='delete' (--on-done delete), which deletes their rows, 'keep', which needs a value for done, "
            "as in Columns(status='state', states={'unclaimed': ..., 'done': ...}) or --state done=VALUE, "
            "or 'leave', where the handler itself makes the queue's `where` false"
        )


class StillDue(ClaimjobsError):
    """With `on_done="leave"` too many rows were still due after their handler had returned."""

    def __init__(self, table: str, count: int) -> None:
        super().__init__(
            f"{count:,} rows of table {table!r} are still due after their handler: with on_done='leave' it must make "
            "the queue's predicate false; correct the handler or the predicate, or choose another on_done"
        )


class BadTable(UnfitTable):
    """The table is a queue, but not one for what was asked."""


class BadMap(ClaimjobsError, ValueError):
    """A map of columns cannot be read, or names a role, a state or a choice that does not exist."""


class BadPredicate(ClaimjobsError):
    """The database does not understand a `where` or an `order_by`."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the database does not understand the predicate ({reason}): it is SQL as after WHERE, for this table; "
            "check its columns and quotes"
        )


class BadOrder(BadPredicate):
    """The database does not understand an `order_by`."""

    def __init__(self, reason: str) -> None:
        ClaimjobsError.__init__(
            self,
            f"the database does not understand the order ({reason}): it is the name of a column, `-name` for the "
            "highest first, or SQL as after ORDER BY; check its columns and quotes",
        )


class NotOneExpression(BadPredicate):
    """A `where` or an `order_by` that is text is not one whole expression: it would reach beyond what it is about."""

    def __init__(self, what: str, flaw: str) -> None:
        ClaimjobsError.__init__(
            self, f"the {what} is not one whole expression ({flaw}): check its quotes, comments and parentheses"
        )


# --- using the library -----------------------------------------------------------------------------------


class BadSize(ClaimjobsError, ValueError):
    """A batch size that is no positive whole number."""

    def __init__(self, size: Any) -> None:
        super().__init__(f"a batch of {size!r} jobs cannot be claimed: give a whole number from 1")


class NoOpenTransaction(ClaimjobsError):
    """A batch was asked for its transaction, and has none, or none any more."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this batch {what}: make the Queue with hold='transaction', and leave commit to `with batch`")


class BadUnique(ClaimjobsError, ValueError):
    """A unique key that would not keep its value."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            f"jobs of table {table!r} cannot be unique by {column!r}, which changes when a job changes hands or waits: "
            "name columns of their payload"
        )


class TooLate(ClaimjobsError):
    """A job of an open transaction failed, or was released, after what it wrote was kept."""

    def __init__(self, key: Any) -> None:
        super().__init__(
            f"what was written for job {key!r} was kept when the loop moved on, and cannot be undone alone: "
            "put the work in `with batch:`, and say so while the loop is at the job"
        )


class BatchRolledBack(ClaimjobsError):
    """The transaction that held a batch is gone: its jobs are free, and nothing that was written for them is there.

    Where the connection broke in the commit itself the whole batch may be done instead; never a part of it.
    """

    def __init__(self, kind: str, *, isolates: bool = False) -> None:
        free = "they are claimed again, fewer at a time, until the one that is refused is alone: that one fails"
        super().__init__(
            f"the batch was rolled back as a whole ({kind}): what was written for its jobs is undone, and "
            f"{free if isolates else 'they are free'}; claim another batch"
        )
        self.kind = kind
        self.isolates = isolates
        """Whether a row was refused, and its batch is marked, so that the same will not come again for ever."""


class SessionsNotOurs(ClaimjobsError):
    """Advisory locks were asked for where a session is not ours alone, or does not see the locks of all others."""

    def __init__(self) -> None:
        super().__init__(
            "lock='advisory' cannot work here: such a lock belongs to a session, and behind a pooler sessions are "
            "shared, in a group with several primaries their locks are unknown to each other: use lock='rows', or "
            "connect to the server itself"
        )


class BatchSettled(ClaimjobsError):
    """A batch was used after its outcomes were written."""

    def __init__(self) -> None:
        super().__init__("this batch is settled, its outcomes are written: claim another one")


class BatchNotSettled(ClaimjobsError):
    """The next batch was asked for while this one was still open."""

    def __init__(self) -> None:
        super().__init__("the last batch was never settled, so its jobs were released: put the work in `with batch:`")


class NotInBatch(ClaimjobsError, LookupError):
    """An outcome was given for a job that this batch does not hold."""

    def __init__(self, key: Any) -> None:
        super().__init__(f"job {key!r} is not in this batch: give a job that came from it")


class CrossedFork(ClaimjobsError):
    """A Queue was used in another process than the one that made it."""

    def __init__(self) -> None:
        super().__init__(
            "this Queue was made in another process, and its connection must not be shared: "
            "make a Queue in each process (and start processes with `spawn`)"
        )


class NothingDecided(ClaimjobsError):
    """A handler returned without saying anything about any job of its batch."""

    def __init__(self, handler: str) -> None:
        super().__init__(
            f"{handler} returned without an outcome for any job, so all were released: "
            "loop over the batch, or call `batch.done()`"
        )


class UnfinishedHandler(ClaimjobsError):
    """A handler returned a coroutine, another awaitable or a generator: its work was not done, and nobody does it."""

    def __init__(self, handler: str, kind: str) -> None:
        super().__init__(
            f"{handler} returned {kind}, which nobody runs: let it do the work before it returns, "
            "with `asyncio.run(...)` where that is async"
        )


class BadOnDone(ClaimjobsError, ValueError):
    """What `on_done` returned says nothing about the done jobs. Its transaction is rolled back."""

    def __init__(self, found: str) -> None:
        super().__init__(f"on_done returned {found}, and nothing was written: return 'delete', 'keep' or None")


class NothingDone(ClaimjobsError):
    """Batch after batch had to be released as it was, and the queue is to be drained: that would never end."""

    def __init__(self, batches: int, why: str) -> None:
        super().__init__(f"nothing came of {batches} batches in a row, the last time because of this: {why}")


class ReferenceNotFound(ClaimjobsError):
    """`MODULE:ATTRIBUTE` leads to nothing."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"{reference!r} cannot be used: {reason}; check the spelling and the folder you are in")


class BadHandler(ClaimjobsError):
    """What a handler's name leads to cannot handle jobs."""


class Unreadable(ClaimjobsError, ValueError):
    """A row holds a value that Python, or its driver, cannot hold. `text` is what is known of it.

    A job whose column is read fails by it alone, whoever else is in its batch.
    """

    def __init__(self, key: Any, column: str, text: str) -> None:
        super().__init__(
            f"column {column!r} of the row with the key {key!r} cannot be read ({text}): correct the row, or "
            "do not read this column"
        )
        self.key = key
        self.column = column
        self.text = text


class KeyUnreadable(UnfitTable):
    """The key of a row is a value that Python, or its driver, cannot hold: the row cannot be named."""

    def __init__(self, table: str, text: str) -> None:
        super().__init__(
            f"the key of a row of table {table!r} cannot be read ({text}), and no claim passes it: correct the row, "
            "leave it out with a `where`, or choose other columns as Columns(key=...)"
        )


class BadRow(ClaimjobsError, ValueError):
    """A row to enqueue does not fit the table. `line` counts from 1; `row` is what was given."""

    def __init__(self, line: int, reason: str, row: Any = None) -> None:
        super().__init__(f"row {line}: {reason}")
        self.line = line
        self.reason = reason
        self.row = row
