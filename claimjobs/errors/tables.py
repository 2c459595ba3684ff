"""Errors of a table: it is missing, its rows cannot be claimed, or nothing says what happens to its done jobs."""

from __future__ import annotations

import shlex
from typing import Final

from claimjobs.errors.base import ClaimjobsError, command


class UnfitTable(ClaimjobsError):
    """The table is missing, or cannot be used as a queue."""


_WITHOUT_TABLE = ("jobs", "claimjobs_owners", "claimjobs_queues", "claimjobs_batches")
"""What `claimjobs setup-tables` makes if no table is named."""


NAMED_WITH_DOT: Final = (
    " (the schema is before the last dot; a table with a dot in its own name is described in Python, as a Table)"
)


class TableMissing(UnfitTable):
    """A table is not in the database: that of jobs, one that queues share, or a side-car."""

    def __init__(self, name: str, *, words: str | None = None, within: str | None = None) -> None:
        """`words`: what makes it, after `setup-tables`; `within`: the table of jobs in whose schema it must be."""
        hints = {**dict.fromkeys(_WITHOUT_TABLE, ""), "claimjobs_ledger": " --ledger"}
        hint = hints.get(name, f" --table {shlex.quote(name)}") if words is None else f" {words}"
        what, otherwise = f"table {name!r} is not in this database", ", or check the name and the URL"
        if within is not None and "." in name:
            what, otherwise = f"{what}, and it must be in the schema of {within!r}", ""
            hint = f" --table {shlex.quote(within)}"
        super().__init__(
            f"{what}: run `claimjobs setup-tables{hint}`{otherwise}"
            + (NAMED_WITH_DOT if "." in name and within is None and words is None else "")
        )


def claims_missing(name: str, source: str) -> TableMissing:
    """The error for a table whose side-car is not in the database."""
    return TableMissing(name, words=f"--table {shlex.quote(source)} --side-car")


class ClaimsDiffer(UnfitTable):
    """Other consumers of the table record their claims in another way: neither would see the other's claims."""

    def __init__(self, table: str, ours: str, others: int) -> None:
        """`ours`: "rows" or "batches"; "transaction" for an open transaction, whose claims are row locks."""
        theirs = "rows" if ours == "batches" else "batches"
        way, options, step = f"claims={ours!r}", f"--claims {theirs}", f"claims={theirs!r}"
        if ours == "transaction":
            way, options, step = "hold='transaction'", f"{options} --hold lease", f"{step}, hold='lease'"
        reclaim = command(f"reclaim {options}", table)
        super().__init__(
            f"table {table!r} has {others} {'owner' if others == 1 else 'owners'} with claims={theirs!r}, whose claims "
            f"are not seen with {way}: add {options} ({step}), or end those consumers first, and run {reclaim} "
            "if one of them died"
        )


class LocksDiffer(ClaimsDiffer):
    """Some consumers of the table claim by lease, and others by a Locking that locks no row: they exclude no claim of
    each other."""

    def __init__(self, table: str, others: int, *, ours: bool = True) -> None:
        """`ours`: the Locking is that of this program."""
        theirs = "with hold='lease'" if ours else "whose Locking locks no rows"
        here = "a Locking that locks no rows" if ours else "a claim by lease"
        UnfitTable.__init__(
            self,
            f"table {table!r} has {others} {'owner' if others == 1 else 'owners'} {theirs}, and {here} excludes no "
            "claim of theirs: give all consumers of a table the same hold and locking, or end those consumers first, "
            "and run `claimjobs reclaim` if one of them died",
        )


class MapsDiffer(ClaimsDiffer):
    """Other consumers of the table know its key or its states by other columns, or have another side-car, or none:
    their claims are not seen."""

    def __init__(self, table: str, ours: str, theirs: str, others: int) -> None:
        UnfitTable.__init__(
            self,
            f"table {table!r} has {others} {'owner' if others == 1 else 'owners'} with another map of its columns, "
            f"or another side-car ({theirs}, and here {ours}), so their claims are not seen: give all consumers of a "
            "table the same Columns and the same side_car, or end those consumers first, and run `claimjobs reclaim` "
            "with theirs if one of them died",
        )


class OwnersOutdated(UnfitTable):
    """A table that queues share lacks a column: an earlier version of claimjobs made it, or somebody dropped it."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            f"table {table!r} has no column {column!r}, perhaps because an earlier version made it: run `claimjobs "
            "upgrade-tables`; if that has nothing to do, add the column as `claimjobs setup-tables --sql` prints it"
        )


class TablesNewer(UnfitTable):
    """A table was made, or upgraded, by a later version of claimjobs."""

    def __init__(self, table: str, version: int, ours: int) -> None:
        super().__init__(
            f"table {table!r} has schema {version}, and this version of claimjobs knows schemas up to {ours}: "
            "upgrade with the later version of claimjobs"
        )


class UpgradeStopped(ClaimjobsError):
    """A statement of an upgrade was refused. The statements before it are done, and stay."""

    def __init__(self, table: str, statement: str, reason: str) -> None:
        super().__init__(
            f"table {table!r} is not upgraded, because the database refused `{statement}` ({reason}): mend that, then "
            "run `claimjobs upgrade-tables` again"
        )


class TableInUse(ClaimjobsError):
    """DDL did not get its lock on a table in time. All later statements on the table would have waited behind it."""

    def __init__(self, table: str, seconds: float, holder: str) -> None:
        super().__init__(
            f"table {table!r} was not free within {seconds:g} s: a lock on it has {holder}; wait for the end of that "
            "transaction, or end it, then run this again"
        )


class NotClaimable(UnfitTable):
    """Rows of the table cannot be locked or changed: it is a view, or its engine has no row locks."""

    def __init__(self, table: str, what: str, step: str) -> None:
        super().__init__(f"table {table!r} {what}: {step}")


class OwnTable(UnfitTable):
    """A table in which claimjobs keeps its own records was named as a table of jobs."""

    def __init__(self, table: str, *, is_side_car: bool = False) -> None:
        step = ", or for its side-car the user's table and --side-car (side_car=True)" if is_side_car else ""
        super().__init__(f"table {table!r} has the records of claimjobs itself, and no jobs: name another table{step}")


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

    def __init__(self, table: str, count: int) -> None:
        super().__init__(
            f"{count:,} rows of table {table!r} are still due after their handler: with on_done='leave' it must make "
            "the queue's predicate false; correct the handler or the predicate, or choose another on_done"
        )
