"""StillDueRows: rows that are still due after their handler has returned, with `on_done="leave"`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from claimjobs.dialects import Dialect, Key
from claimjobs.errors import StillDue
from claimjobs.key_text import key_in_message
from claimjobs.log_events import JOBS_LEFT
from claimjobs.report import Report
from claimjobs.statements.find import all_but
from claimjobs.table.roles import ColumnRoles

MOST_EXCLUDED: Final = 1_000
"""The most rows that are excluded from claims: each claim sends their keys."""
KEYS_SHOWN: Final = 10
"""The most keys in a message."""

log = logging.getLogger("claimjobs.still_due")


class StillDueRows:
    """Finds such rows in the settle, reports each once, and excludes them from the claims of this Queue.

    Other Queues do not know them: another consumer may claim such a row once, too.
    """

    def __init__(self, roles: ColumnRoles, dialect: Dialect, report: Report) -> None:
        self._roles = roles
        self._dialect = dialect
        self._report = report
        self._keys: dict[Key, None] = {}

    @property
    def claimable(self) -> sa.ColumnElement[bool]:
        """True for rows that this Queue may still claim. The keys are read each time it is sent."""
        return all_but(self._dialect, self._roles, "claimjobs_still_due", self._keys)

    def find(self, connection: sa.Connection, done: Sequence[Key], due: sa.ColumnElement[bool]) -> None:
        """Find the done rows that are still `due`, in the settle's transaction, and report them."""
        roles = self._roles
        found = sa.select(*roles.key).where(due).order_by(*roles.key)
        # A locking read sees rows as they are now; a plain one may see an older snapshot.
        locked = self._dialect.restrict_to_keys(found, roles.key, roles.key_index).with_for_update(of=roles.table)
        keys = [roles.key_in(row) for row in connection.execute(locked, {"claimjobs_keys": list(done)}).mappings()]
        new = [key for key in keys if key not in self._keys]
        if new:
            self._keys.update(dict.fromkeys(new))
            self._report.still_due += len(new)
            more = f" and {len(new) - KEYS_SHOWN} more" if len(new) > KEYS_SHOWN else ""
            shown, fields = ", ".join(map(key_in_message, new[:KEYS_SHOWN])), {"queue": roles.name, "keys": new}
            words = (
                "table %s: the handler returned, and these rows are still due: %s%s; they are not claimed again by "
                "this consumer: let the handler make the predicate false"
            )
            log.warning(words, roles.name, shown, more, extra={"event": JOBS_LEFT, **fields})

    def check(self) -> None:
        """Raises StillDue if there are too many such rows: the handler does not make its predicate false."""
        if len(self._keys) > MOST_EXCLUDED:
            raise StillDue(
                f"{len(self._keys):,} rows of table {self._roles.name!r} are still due after their handler: with "
                "on_done='leave' it must make the queue's predicate false; correct the handler or the predicate, or "
                "choose another on_done"
            )
