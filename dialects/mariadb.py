"""MariaDB 10.6 and later: a MySQL with another version and a few other error codes.

It has no FOR UPDATE OF (SQLAlchemy leaves the clause out by itself). That loses nothing: the table of candidates in
phase 2 has no rows that could be locked.
"""

from __future__ import annotations

from claimjobs.dialects.mysql import MySQL
from claimjobs.dialects.mysql.errors import MariaDBErrors
from claimjobs.dialects.mysql.inspection import MariaDBInspection
from claimjobs.dialects.mysql.sessions import MariaDBSessions
from claimjobs.dialects.mysql.table_rules import MariaDBTableRules


class MariaDB(MySQL):
    errors = MariaDBErrors()
    sessions = MariaDBSessions()
    table_rules = MariaDBTableRules()
    inspection = MariaDBInspection()

    title = "MariaDB"
    # SKIP LOCKED and JSON_TABLE both came with 10.6.
    oldest = (10, 6)
    # Without FOR UPDATE OF, a locking read also locks the rows that its subqueries read.
    finds_and_locks_at_once = False
