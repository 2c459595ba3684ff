"""Rights on Postgres: a schema and the sequences of a table's defaults have rights of their own."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from claimjobs.dialects.access_rights import AccessRights
from claimjobs.dialects.postgres.names import PREPARER

# The sequences that defaults of the table call. An identity column needs no right on its sequence.
_SEQUENCES = sa.text(
    "SELECT DISTINCT nspname, relname FROM pg_attrdef JOIN pg_depend ON classid = 'pg_attrdef'::regclass "
    "AND objid = pg_attrdef.oid AND refclassid = 'pg_class'::regclass JOIN pg_class ON pg_class.oid = refobjid "
    "AND relkind = 'S' JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE adrelid = to_regclass(:name) "
    "ORDER BY nspname, relname"
)


class PostgresAccessRights(AccessRights):
    locking = frozenset({"UPDATE"})
    other_sessions = "pg_signal_backend"

    def quote(self, name: str) -> str:
        return PREPARER.quote(name)

    def account(self, name: str) -> str:
        # Some words, such as CURRENT_USER, mean another account if they are not quoted.
        return PREPARER.quote_identifier(name)

    def around(self, connection: sa.Connection, tables: Sequence[sa.Table]) -> list[str]:
        schemas = dict.fromkeys(table.schema or connection.dialect.default_schema_name or "" for table in tables)
        return [f"USAGE ON SCHEMA {self.quote(schema)}" for schema in schemas]

    def defaults(self, connection: sa.Connection, table: sa.Table) -> list[str]:
        found = connection.execute(_SEQUENCES, {"name": PREPARER.format_table(table)})
        return [f"USAGE ON SEQUENCE {self.quote(row.nspname)}.{self.quote(row.relname)}" for row in found]
