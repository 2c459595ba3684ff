"""Rights on MySQL: an account has a host, and only an account with a right on a whole table may read its definition."""

from __future__ import annotations

from claimjobs.dialects.access_rights import AccessRights


class MySQLAccessRights(AccessRights):
    # SQLAlchemy reads a table by SHOW CREATE TABLE. The server refuses that to an account that has rights on columns
    # only. On a table that is no view, SHOW VIEW allows nothing else.
    definition = "SHOW VIEW"
    locking = frozenset({"UPDATE", "DELETE"})
    other_sessions = "CONNECTION_ADMIN ON *.*"

    def quote(self, name: str) -> str:
        # A backtick quotes in every sql_mode.
        return "`" + name.replace("`", "``") + "`"

    def account(self, name: str) -> str:
        # Without a host, MariaDB means the role of this name, if there is one.
        user, at, host = name.rpartition("@")
        return f"{self.quote(user)}@{self.quote(host)}" if at else self.quote(name)


class MariaDBAccessRights(MySQLAccessRights):
    locking: frozenset[str] = frozenset()
    other_sessions = "CONNECTION ADMIN ON *.*"
