"""The error numbers of MySQL, of MariaDB and of their drivers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from claimjobs.dialects import error_codes as kinds
from claimjobs.dialects.error_codes import (
    FULL,
    INTERRUPTED,
    LOST,
    READ_ONLY,
    UNAVAILABLE,
    ErrorCodes,
    Signs,
    words_of,
)

KILLED: Final = 1317
"""KILL QUERY ended the statement."""
REFUSED_BY_GROUP: Final = 3101
"""A group refused the commit at certification."""
UNREACHABLE: Final = 2003
"""No server answers at an address."""
NO_WRITES: Final = "is read-only"
"""What `Hosts` says of a server that it passes over."""
_AN_OPTION: Final = 1290
"""An option of the server forbids this statement: `--read-only`, but also `--secure-file-priv` and others."""
_FULL: Final = (1040, 1203, 1226)


class MySQLErrors(ErrorCodes):
    transient: ClassVar[dict[Any, str]] = {
        1213: "deadlock",
        1205: "lock timeout",
        3572: "lock timeout",  # NOWAIT met a lock
        REFUSED_BY_GROUP: "serialization",
        1180: "serialization",  # the commit reports the same refusal
        KILLED: INTERRUPTED,  # KILL QUERY; see `code`
        1684: "serialization",  # another session is altering a table that this one asks about
        1021: "disk full",
        1114: "disk full",
        # TiDB's: it says that the transaction, or the write, may be tried again (docs.pingcap.com, "Error Codes and
        # Troubleshooting"). MySQL 9.7 numbers no error from 7000 to 9999.
        **dict.fromkeys((8002, 8005, 8022, 8028, 9007), "serialization"),
    }
    broken: ClassVar[dict[Any, str]] = {
        **dict.fromkeys((2006, 2013, 2014, 2055, 4031, 1158, 1159, 1160, 1161, 1927), LOST),
        # 1129: the server blocks this client's host. 2005: mysqlclient's for a host whose name does not resolve.
        # 3032: the member is in offline mode. 3100: it refuses the commit, because it is about to leave its group.
        # 3796 and 3797: it cannot apply, or has not applied in time, what its group has committed.
        # 1047: the member is not in the part of its Galera cluster that has the majority, or has yet to join it.
        **dict.fromkeys((1129, 2002, UNREACHABLE, 2005, 1047, 1053, 3032, 3100, 3796, 3797), UNAVAILABLE),
        **dict.fromkeys(_FULL, FULL),
        **dict.fromkeys((_AN_OPTION, 1792, 1836), READ_ONLY),
    }
    missing_table = frozenset({1146})
    missing_index = frozenset({1176})
    # A syntax error, "not supported yet", an unknown function; 1105 is what TiDB and Vitess say where they plan.
    lacking = frozenset({1064, 1105, 1235, 1305})
    # fmt: off
    bad_predicate = frozenset(
        {
            1052, 1054, 1064, 1093, 1109, 1111, 1139, 1140, 1146, 1210, 1221, 1235, 1241, 1242, 1247, 1248, 1267, 1270,
            1271, 1273, 1292, 1305, 1318, 1365, 1411, 1525, 1582, 1583, 1584, 1630, 1690, 4078,
            # JSON; regular expressions; windows, of MySQL and of MariaDB.
            *range(3140, 3159), *range(3685, 3702), *range(3579, 3600), *range(4015, 4025),
        }
    )
    # fmt: on
    # 1109 is a table that information_schema does not have; 1300 (MariaDB) and 3854 are characters of no name.
    bad_name = frozenset({1049, 1050, 1059, 1061, 1102, 1103, 1109, 1300, 3854})
    duplicate = frozenset({1062})

    # 1216, 1217, 1451 and 1452 are foreign keys, 1365 a division by zero, 1369 a view's check, 1644 SIGNAL, 1690 a
    # number out of range.
    bad_row = frozenset(
        {1048, 1062, 1216, 1217, 1264, 1265, 1292, 1364, 1365, 1366, 1369, 1406, 1411, 1451, 1452, 1644, 1690, 3140}
        | {3819, 4025}
    )
    connect_problems: ClassVar[Mapping[str, Signs]] = {
        kinds.TIMED_OUT: Signs(frozenset({3024, 1969})),  # max_execution_time; MariaDB's max_statement_time
        kinds.NO_DATABASE: Signs(frozenset({1049, 1059, 1102})),  # the last two: no database can have this name
        # The last ones: an expired password, and a locked account of MySQL and of MariaDB.
        kinds.ACCESS_DENIED: Signs(frozenset({1044, 1045, 1130, 1142, 1698, 1820, 1862, 3118, 4151})),
        kinds.TLS: Signs(words="SSL|certificate|insecure transport"),
        FULL: Signs(frozenset(_FULL)),
        kinds.NO_WRITES: Signs(frozenset({UNREACHABLE}), NO_WRITES),
        kinds.OTHER_PRODUCT: Signs(words="is not a MariaDB variant"),  # SQLAlchemy's words
    }
    # The account lacks a right on a table, or on a column of it. MariaDB names the database, too.
    denied = Signs(frozenset({1142, 1143}), r" for table (?:[`']?[^`'.]+[`']?\.)?[`']?([^`'.]+)[`']")
    missing = r"'(?:[^']*\.)?([^'.]+)'"

    unfit_settings: ClassVar[Mapping[Any, tuple[str, str]]] = {
        # The planner expects to examine more than max_join_size rows.
        1104: ("sql_big_selects = 0 and a low max_join_size", "SET SESSION sql_big_selects = 1")
    }

    def code(self, error: BaseException) -> Any:
        original = getattr(error, "orig", None) or error
        number = original.args[0] if original.args and isinstance(original.args[0], int) else None
        words = words_of(error) if number in {1030, 1105} else ""
        # KILL QUERY during a DELETE of joined rows raises an error without a number of its own.
        if number == 1105 and "An error occurred in multi-table" in words:
            return KILLED
        # A transaction of another member has rolled this one back in InnoDB, before the release of a savepoint.
        return REFUSED_BY_GROUP if number == 1030 and "Got error 153 " in words else number

    def broken_kind(self, error: BaseException) -> str | None:
        is_other_option = self.code(error) == _AN_OPTION and "read-only" not in words_of(error)
        return None if is_other_option else super().broken_kind(error)

    def refusing_index(self, error: BaseException, table: str) -> str | None:
        # 'index', or since MySQL 8.0.19 'table.index', where some servers write the name of a table in small letters.
        found = re.search(r"(?s).* for key '(.+)'$", words_of(error))
        if found is None:
            return None
        start, name = len(table) + 1, found[1]
        return name[start:] if name[:start].casefold() == f"{table}.".casefold() else name


class MariaDBErrors(MySQLErrors):
    # Since 11, innodb_snapshot_isolation refuses to change a row that is newer than the snapshot.
    transient: ClassVar[dict[Any, str]] = {**MySQLErrors.transient, 1020: "serialization"}
