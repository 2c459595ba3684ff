"""Access rights: how GRANT names accounts and rights, and which rights only some databases need."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa


class AccessRights:
    """For statements that an administrator runs. claimjobs itself grants nothing."""

    definition: str | None = None
    """The table right that lets an account read a table's definition and no row. None: every account may read it."""

    locking: frozenset[str] = frozenset()
    """Beside SELECT an account needs one of these rights on a table to lock its rows. None are given: SELECT suffices.
    """

    other_sessions: str
    """The right to end sessions of other accounts, and what is between it and TO in a GRANT."""

    def quote(self, name: str) -> str:
        """A name, quoted if it must be."""
        raise NotImplementedError

    def account(self, name: str) -> str:
        """The name of an account or a role, quoted."""
        raise NotImplementedError

    def table(self, connection: sa.Connection, table: sa.Table) -> str:
        """The name of a table with its schema or database, quoted."""
        schema = table.schema or connection.dialect.default_schema_name or ""
        return f"{self.quote(schema)}.{self.quote(table.name)}"

    def around(self, connection: sa.Connection, tables: Sequence[sa.Table]) -> list[str]:
        """What an account needs before any right on these tables counts, each as written between GRANT and TO."""
        del connection, tables
        return []

    def defaults(self, connection: sa.Connection, table: sa.Table) -> list[str]:
        """What an account needs in addition so that a new row gets its defaults, written as for `around`."""
        del connection, table
        return []
