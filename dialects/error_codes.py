"""Which error means what: every database, and every driver, has its own codes and words."""

from __future__ import annotations

from typing import Any, ClassVar, Final

TIMED_OUT: Final = "statement timeout"
"""The kind of an error for which `timed_out` is true."""

STALE_PLAN: Final = "prepared statement"
"""The kind of an error of a statement that must be prepared again."""

INTERRUPTED: Final = "interrupted"
"""The kind of an error after which a statement was ended from outside, or by a function that says so."""

BY_THE_WORK: Final = frozenset({TIMED_OUT, INTERRUPTED})
"""Kinds that may pass, and that a single row may cause each time: a trigger may be slow, or raise them itself."""

FULL: Final = "too many connections"
"""The kind of an error of a server, an account or a database that has as many sessions as it may have."""

LOST: Final = "connection lost"
"""The kind of an error that says that the session has ended, whoever ended it."""

READ_ONLY: Final = "read only"
"""The kind of an error that refuses every write, whatever it writes."""


class ErrorCodes:
    """Classifies the errors of a database. Sets of codes are attributes; what a code does not say is a method."""

    transient: ClassVar[dict[Any, str]] = {}
    """Codes after which the same transaction may succeed when it runs again, with the kind to count."""

    broken: ClassVar[dict[Any, str]] = {}
    """Codes after which it may succeed on a new connection, perhaps to another server, with the kind to count."""

    missing_table: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "there is no such table"."""

    missing_index: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "there is no such index", or it is hidden, where a statement names the index that it uses."""

    bad_predicate: ClassVar[frozenset[Any]] = frozenset()
    """Codes that a wrong `where` or `order_by` may cause."""

    lacking: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "this server has no such syntax, function or feature"; a user's predicate may cause them as well."""

    bad_name: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "nothing can be made under this name": it is too long, in use, or empty."""

    bad_row: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "this row does not fit": a value is too long, NULL, out of range, or violates a constraint."""

    duplicate: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "a row with this unique key exists"."""

    def code(self, error: BaseException) -> Any:
        """The server's or the driver's code of this error; None if it has none."""
        raise NotImplementedError

    def refuses_row(self, error: BaseException) -> bool:
        """Whether a write failed because of the values of a row, so that another row may be written."""
        return self.code(error) in self.bad_row

    def may_be_of_a_row(self, error: BaseException) -> bool:
        """Whether a single row may be the cause why a write failed: each error that is no conflict and no outage.

        Its code does not say it. A trigger may raise any code for one row, or end in the error of another table.
        """
        if self.broken_kind(error) or self.code(error) in self.missing_index:
            return False
        kind = self.transient_kind(error)
        return kind is None or kind in BY_THE_WORK

    def denied_table(self, error: BaseException) -> str | None:
        """The name, without its schema, of the table that the account may not use; None for every other error."""
        return None

    def refusing_index(self, error: BaseException, table: str | None = None) -> str | None:
        """The unique index that an error of `duplicate` is about; None if the error does not name it.

        `table`: None also if it names another table, into which a trigger writes.
        """
        return None

    def missing_name(self, error: BaseException) -> str | None:
        """The name, without its schema, of the table that an error of `missing_table` is about."""
        raise NotImplementedError

    def transient_kind(self, error: BaseException) -> str | None:
        """`deadlock`, `lock timeout`, `serialization` and so on for an error worth another attempt, else None."""
        if self.timed_out(error):
            return TIMED_OUT
        if self.is_stale_plan(error):
            return STALE_PLAN
        code = self.code(error)
        return None if code is None else self.transient.get(code)

    def timed_out(self, error: BaseException) -> bool:
        """Whether the server ended a statement that exceeded a time limit of the server."""
        return False

    def is_stale_plan(self, error: BaseException) -> bool:
        """Whether a prepared statement failed because a table has changed since: prepared anew, it may succeed."""
        return False

    def unfit_setting(self, error: BaseException) -> tuple[str, str] | None:
        """The setting of the session because of which a statement was refused, and the SQL that changes it."""
        return None

    def broken_kind(self, error: BaseException) -> str | None:
        """`connection lost` and so on for an error worth another connection, else None."""
        kind = self.broken.get(self.code(error))
        return kind or (LOST if getattr(error, "connection_invalidated", False) else None)

    def connect_kind(self, error: BaseException) -> str:
        """The kind to count for a failure to connect."""
        return self.broken.get(self.code(error), "server unavailable")

    def is_other_protocol(self, error: BaseException) -> bool:
        """Whether a connection failed because what answered there is another kind of server."""
        return False

    def lacks_encoding(self, error: BaseException) -> bool:
        """Whether a connection failed because texts of the server come as bytes: it does not know their encoding."""
        del error
        return False

    def is_about_tls(self, error: BaseException) -> bool:
        """Whether a connection failed because of its encryption: a certificate, or none where the server wants one."""
        said = str(getattr(error, "orig", None) or error)
        return any(word in said for word in ("SSL", "certificate", "insecure transport"))

    def refuses_account(self, error: BaseException) -> bool:
        """Whether the server refused this user, password, address or right."""
        raise NotImplementedError

    def no_such_database(self, error: BaseException) -> bool:
        """Whether a connection failed because the server has no database of this name."""
        raise NotImplementedError

    def takes_no_writes(self, error: BaseException) -> bool:
        """Whether a connection failed because all servers of the URL that answered are read-only."""
        del error
        return False

    def is_other_product(self, error: BaseException) -> bool:
        """Whether SQLAlchemy refused a connection because the server is another product than the URL says."""
        return False

    def forbids_transactions(self, error: BaseException) -> bool:
        """Whether a connection failed because a pooler runs each statement in another session."""
        return False
