"""Errors of reaching the database, and of what its server allows."""

from __future__ import annotations

from claimjobs.errors.base import ClaimjobsError


class ConnectionFailed(ClaimjobsError):
    """claimjobs cannot connect to the database, or cannot work with it."""


class UnknownDatabase(ConnectionFailed):
    """The URL cannot be read, or does not lead to MySQL, MariaDB or Postgres."""


class ServerUnreachable(ConnectionFailed):
    """No server answers at the address of the URL."""


class AccessDenied(ConnectionFailed):
    """The server refused the user, the password or the database."""


class StatementTimedOut(ClaimjobsError):
    """The server ended a statement that exceeded a time limit of the server, at the last attempt.

    That is after `Liveness.patience`. Work that can be divided has five attempts, and a single row a lease.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the server ends statements that take too long ({reason}): give this account more time "
            "(statement_timeout, max_execution_time, max_statement_time), or add the index that the statement lacks"
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
        """`instead`: what also works, and is not a session lock; None: that of a consumer."""
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
