"""Errors of reaching the database, and of what its server allows."""

from __future__ import annotations

from claimjobs.errors.base import ClaimjobsError


class ConnectionFailed(ClaimjobsError):
    """claimjobs cannot connect to the database, or cannot work with it."""


class UnknownDatabase(ConnectionFailed):
    """The URL cannot be read, or does not lead to MySQL, MariaDB or Postgres."""


class DriverMissing(ConnectionFailed):
    """The Python driver that the URL names is not installed."""


class DriverUnsupported(UnknownDatabase):
    """claimjobs does not work with the driver of the URL or the engine. The message names the drivers that it knows."""


class ServerUnreachable(ConnectionFailed):
    """No server answers at the address of the URL."""


class AccessDenied(ConnectionFailed):
    """The server refused the user, the password or the database."""


class DatabaseMissing(AccessDenied):
    """The server has no database of the URL's name."""

    def __init__(self, url: str, reason: str) -> None:
        self.found = f"{url}: there is no such database ({reason})"
        super().__init__(f"{self.found}: create it, or correct the URL")


class NotConsumer(AccessDenied):
    """This user may not read the tables of a queue as a consumer must."""

    def __init__(self, tables: str, reason: str, needed: str) -> None:
        super().__init__(
            f"this user may not read {tables} ({reason}), as a consumer must, which needs {needed}: give a consumer's "
            "account in the URL, or grant this one what docs/security.md has for a consumer"
        )


class PoolerUnfit(ConnectionFailed):
    """The pooler before the server runs each statement in another session, so transactions are impossible."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"{url}: the pooler allows no transactions ({reason}): set its pool mode to transaction or session for "
            "this database, or connect to the server itself"
        )


class StatementTimedOut(ClaimjobsError):
    """The server ended a statement that exceeded a time limit of the server, at every attempt."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the server ends statements that take too long ({reason}): give this account more time "
            "(statement_timeout, max_execution_time, max_statement_time), or add the index that the statement lacks"
        )


class ServerTooOld(ConnectionFailed):
    """The server's version has no SKIP LOCKED, or lacks another feature that a claim needs."""

    def __init__(self, title: str, found: str, needed: str) -> None:
        super().__init__(
            f"{title} {found} cannot claim with SKIP LOCKED: upgrade the server to {title} {needed} or later"
        )


class ServerUnknown(ConnectionFailed):
    """The server speaks the protocol of a database, and says a version that is none of this database."""

    def __init__(self, url: str, reason: str, title: str) -> None:
        super().__init__(
            f"{url}: the server does not say that it is {title} ({reason}): check the URL; docs/scaling.md says what "
            "other products that speak this protocol can do"
        )


class ServerLacks(ConnectionFailed):
    """The server speaks the protocol of a database that claimjobs knows, and cannot run a statement of this queue."""

    def __init__(self, table: str, phase: str, reason: str, needed: str) -> None:
        super().__init__(
            f"no claim of table {table!r} can work on this server: {phase!r} does not work ({reason}): "
            f"choose {needed} or later, or a service that has what docs/scaling.md names"
        )


class SettingUnfit(ClaimjobsError):
    """A session that claimjobs must not change has a setting with which its statements fail, or read too few rows."""

    def __init__(self, setting: str, change: str) -> None:
        super().__init__(
            f"sessions of this account have {setting}, with which claimjobs cannot work, and claimjobs changes no "
            f"setting of a session that is shared, or that the handler uses: run `{change}` on each new "
            "connection of the engine, or change the setting for the account"
        )


class ReadOnly(ConnectionFailed):
    """The server refused every attempt to write, because it is read-only: it may be a standby since a failover."""

    def __init__(self, table: str | None, reason: str) -> None:
        what = "nothing" if table is None else f"no claim or outcome of table {table!r}"
        super().__init__(
            f"{what} can be written, because the server is read-only ({reason}): check that the URL leads to the "
            "primary, and that neither the server, the database nor the account is set to read-only"
        )


class SessionReadOnly(SettingUnfit):
    """Sessions of the engine were set to read-only, though the server is not."""

    def __init__(self, table: str, setting: str, change: str) -> None:
        ClaimjobsError.__init__(
            self,
            f"no claim of table {table!r} can be written, because sessions of this engine are read-only ({setting}): "
            f"give a consumer an engine without that setting, or let `{change}` be run on each new connection",
        )


class SessionsShared(ConnectionFailed):
    """A session lock is wanted and cannot work: a pooler shares sessions, or a group does not share locks."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"a session lock cannot work here: {reason}: connect to the server itself, or set the pool mode of the "
            "pooler to session; a consumer also works by its lease alone (`--session-lock auto`, "
            "`Liveness(session_lock=None)`)"
        )


class SeveralPrimaries(ConnectionFailed):
    """The server is one of several primaries, and claims of this kind write no row of a job.

    So none of two claims of one job that are made on two primaries would be refused.
    """

    def __init__(self, table: str, way: str, instead: str) -> None:
        """`way`: the setting that does not work; `instead`: the options that do."""
        super().__init__(
            f"{way} cannot work for table {table!r} here: this server is one of several primaries, which do not see "
            "each other's locks, so two consumers would work on the same jobs: "
            f"add {instead}, or let the cluster have a single primary"
        )


class SessionsNotOurs(ClaimjobsError):
    """Advisory locks cannot work: a pooler shares the session, or other servers of a group do not see its locks."""

    def __init__(self) -> None:
        super().__init__(
            "advisory locks cannot work here: such a lock belongs to a session, and a pooler shares sessions, or the "
            "primaries of a group do not see each other's locks: connect to the server itself, or leave out `locking`; "
            "if the pooler shares no session, give AdvisoryLocks(behind_pooler=True)"
        )
