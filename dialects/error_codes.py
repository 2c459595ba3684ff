"""Which error means what: every database, and every driver, has its own codes and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol

# Kinds of errors that may pass, as `transient_kind` and `broken_kind` return them, and reports count them.
TIMED_OUT: Final = "statement timeout"
STALE_PLAN: Final = "prepared statement"
INTERRUPTED: Final = "interrupted"  # a statement was ended from outside, or by a function that says so
FULL: Final = "too many connections"  # of the server, of the account or of the database
LOST: Final = "connection lost"  # the session has ended, whoever ended it
READ_ONLY: Final = "read only"  # every write is refused, whatever it writes
UNAVAILABLE: Final = "server unavailable"

BY_THE_WORK: Final = frozenset({TIMED_OUT, INTERRUPTED})
"""Kinds that a single row may cause each time: a trigger may be slow, or raise them itself."""

# Why there is no connection, as `connect_problem` returns it; also FULL, TIMED_OUT and UNAVAILABLE.
ACCESS_DENIED: Final = "access denied"  # the user, the password, the address or a right
NO_DATABASE: Final = "no such database"
NO_TRANSACTIONS: Final = "no transactions"  # a pooler runs each statement in another session
NO_WRITES: Final = "no writes"  # all servers of the URL that answered are read-only
OTHER_PROTOCOL: Final = "other protocol"  # what answered is another kind of server
OTHER_PRODUCT: Final = "other product"  # SQLAlchemy refused the server: the URL names another product
NO_ENCODING: Final = "no encoding"  # texts come as bytes, because the database has no encoding
TLS: Final = "encryption"  # a certificate, or no encryption where the server wants it


class Signs(NamedTuple):
    """How an error is recognised: by its code, its words, or both."""

    codes: frozenset[Any] = frozenset()
    """The codes of the error; none: any code."""
    words: str = ""
    """A regular expression that matches the words of the server, or of the driver."""


class ErrorCodes(Protocol):
    """Classifies the errors of a database by its codes, and by its words where a code does not say enough."""

    transient: ClassVar[dict[Any, str]]
    """Codes after which the same transaction may succeed when it runs again, with the kind to count."""
    broken: ClassVar[dict[Any, str]]
    """Codes after which it may succeed on a new connection, perhaps to another server, with the kind to count."""
    missing_table: ClassVar[frozenset[Any]]
    """Codes of "there is no such table"."""
    missing_index: ClassVar[frozenset[Any]] = frozenset()
    """Codes of "there is no such index", or it is hidden, where a statement names the index that it uses."""
    bad_predicate: ClassVar[frozenset[Any]]
    """Codes that a wrong `where` or `order_by` may cause."""
    lacking: ClassVar[frozenset[Any]]
    """Codes of "this server has no such syntax, function or feature"; a user's predicate may cause them as well."""
    bad_name: ClassVar[frozenset[Any]]
    """Codes of "nothing can be made under this name": it is too long, in use, or empty."""
    duplicate: ClassVar[frozenset[Any]]
    """Codes of "a row with this unique key exists"."""
    bad_row: ClassVar[frozenset[Any]]
    """Codes, or their first two characters, of a write that failed because of the values of a row."""
    connect_problems: ClassVar[Mapping[str, Signs]]
    """Why connecting failed. The first one whose signs an error has is the reason."""
    denied: ClassVar[Signs]
    """The account lacks a right on a table. The first group of the words is the table, without its schema."""
    unfit_settings: ClassVar[Mapping[Any, tuple[str, str]]] = {}
    """`unfit_setting`, by its code."""
    missing: ClassVar[str]
    """The words of `missing_table`. Their first group is the table, without its schema."""

    def code(self, error: BaseException) -> Any:
        """The server's or the driver's code of this error; None if it has none."""

    def transient_kind(self, error: BaseException) -> str | None:
        """`deadlock`, `lock timeout`, `serialization` and so on for an error worth another attempt, else None."""
        if self.timed_out(error):
            return TIMED_OUT
        return STALE_PLAN if self.is_stale_plan(error) else self.transient.get(self.code(error))

    def broken_kind(self, error: BaseException) -> str | None:
        """`connection lost` and so on for an error worth another connection, else None."""
        kind = self.broken.get(self.code(error))
        return kind or (LOST if getattr(error, "connection_invalidated", False) else None)

    def passing_kind(self, error: BaseException) -> str | None:
        """The kind of an error after which another attempt may succeed: a lost connection, a deadlock and so on."""
        return self.broken_kind(error) or self.transient_kind(error)

    def timed_out(self, error: BaseException) -> bool:
        """Whether the server ended a statement that exceeded a time limit of the server."""
        return self._found(error, self.connect_problems[TIMED_OUT]) is not None

    def waited_for_lock(self, error: BaseException) -> bool:
        """Whether another session has kept a lock for longer than a statement may wait."""
        return self.transient_kind(error) == "lock timeout"

    def is_stale_plan(self, error: BaseException) -> bool:
        """Whether a prepared statement failed because a table has changed since: prepared anew, it may succeed."""
        return False

    def connect_problem(self, error: BaseException) -> str:
        """Why connecting failed. `error` is what SQLAlchemy raised."""
        found = (problem for problem, signs in self.connect_problems.items() if self._found(error, signs))
        return next(found, UNAVAILABLE)

    def refuses_account(self, error: BaseException) -> bool:
        """Whether the server refused this user, password, address or right."""
        return self._found(error, self.connect_problems[ACCESS_DENIED]) is not None

    def unfit_setting(self, error: BaseException) -> tuple[str, str] | None:
        """The setting of the session because of which a statement was refused, and the SQL that changes it."""
        return self.unfit_settings.get(self.code(error))

    # --- which row, which table ----------------------------------------------------------------------------

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
        found = self._found(error, self.denied)
        return found[1] if found else None

    def missing_name(self, error: BaseException) -> str | None:
        """The name, without its schema, of the table that an error of `missing_table` is about."""
        found = self._found(error, Signs(words=self.missing))
        return found[1] if found else None

    def refusing_index(self, error: BaseException, table: str) -> str | None:
        """The unique index of this table that an error of `duplicate` is about. None, or no name of such an index, if
        the error does not name it, or is about another table, into which a trigger writes.
        """

    def _found(self, error: BaseException, signs: Signs) -> re.Match[str] | None:
        """The words of an error that has these signs; None: it has not."""
        return None if signs.codes and self.code(error) not in signs.codes else re.search(signs.words, words_of(error))


def words_of(error: BaseException) -> str:
    """The words of the driver."""
    original = getattr(error, "orig", None) or error
    return str(original.args[-1] if original.args else original)
