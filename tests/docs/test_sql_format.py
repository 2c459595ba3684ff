"""SQL on the page for the DBA: a clause a line, and no token changed."""

from __future__ import annotations

import pytest

from docs import sql_statements
from docs.sql_format import formatted
from docs.sql_texts import TEXTS

RAW = (
    "WITH a AS MATERIALIZED "
    "(SELECT t.id FROM t WHERE t.x = 1 AND t.y = 2 ORDER BY t.id LIMIT 3 FOR UPDATE SKIP LOCKED), b AS "
    "(DELETE FROM t WHERE (t.x = 1 AND t.y = 2) IS true RETURNING t.id) SELECT b.id FROM a LEFT OUTER JOIN b ON true"
)
READ = """\
WITH a AS MATERIALIZED (
    SELECT t.id
    FROM t
    WHERE t.x = 1
        AND t.y = 2
    ORDER BY t.id
    LIMIT 3
    FOR UPDATE SKIP LOCKED
),

b AS (
    DELETE FROM t
    WHERE (t.x = 1 AND t.y = 2) IS true
    RETURNING t.id
)
SELECT b.id
FROM a
LEFT OUTER JOIN b ON true"""


def test_each_clause_and_each_table_expression_has_a_line_of_its_own() -> None:
    assert formatted(RAW) == READ
    assert formatted(READ) == READ


@pytest.mark.parametrize("family", sql_statements.URLS)
def test_each_statement_has_a_sentence_that_says_what_it_is_for(family: str) -> None:
    assert set(sql_statements.statements(family)) - set(TEXTS) == set()
    assert all(purpose.endswith((".", "?")) for _, purpose in TEXTS.values())
