"""Whether a piece of SQL is one whole expression, by the rules of each database."""

from __future__ import annotations

import pytest

from claimjobs.dialects import DIALECTS, Lexis
from claimjobs.dialects.lexis import CHANGES_NOTHING

DATABASES = {"standard": Lexis(), **{name: dialect.lexis for name, dialect in DIALECTS.items()}}
ALL = tuple(DATABASES)
MY = ("mysql", "mariadb")

WHOLE = [
    ("1=1", ALL),
    ("(a or b) and (c)", ALL),
    ("d = ')'", ALL),
    ("d = 'it''s ) ('", ALL),
    ('"a)b" = 1', ALL),
    ("d like 'a;b'", ALL),
    (r"d = '\' and (e = '\')", ("standard", "postgresql")),
    (r"d like '%\_x' or d = 'a\'", ("standard", "postgresql")),
    (r"d like '%\_x)' or d = 'a\\'", MY),
    ("`a)b` = 1", MY),
    ("a = 1--1", MY),
    (r"d = E'it\'s )'", ("postgresql",)),
    ("d = $$ ) '$$", ("postgresql",)),
    ("d = $x$ ) $$ $x$", ("postgresql",)),
    ("a$b$c = 1 or (a$b$d = 2)", ("postgresql",)),
    ("f($1)", ("postgresql",)),
    ("€$a$b = 1 or €$a$c = 2", ("postgresql",)),
    ("a #> '{b}' = c", ("postgresql",)),
]

BROKEN = [
    ("1=1) or (1=1", ALL, "closes none"),
    ("1=1)", ALL, "character 4 closes none"),
    ("(1=1", ALL, "character 1 is never closed"),
    ("d = 'a", ALL, "quote at character 5 is never closed"),
    ("d = 'it''s", ALL, "never closed"),
    ('"a = 1', ALL, "never closed"),
    ("1=1; drop table jobs", ALL, "semicolon at character 4"),
    ("(1=1;)", ALL, "semicolon"),
    ("1=1 /* ", ALL, "comment at character 5 may hide a part of it: leave it out"),
    ("a /* ) */ = 1", ALL, "comment at character 3"),
    ("1=1 -- x", ALL, "comment"),
    ("1=1 --", ALL, "comment"),
    ("a = 1 -- )\nor (b)", ALL, "comment"),
    ("1=1 # x", MY, "comment"),
    ("`a = 1", MY, "never closed"),
    ("1=1 /*!50000 ) or (1=1 */", MY, "comment"),
    (r"d = 'a\' or (1=1", MY, "never closed"),
    (r"d = '\' or 1=1) or (1=1 or d = '", MY, "closes none where no backslash escapes a quote (NO_BACKSLASH_ESCAPES)"),
    (r"d = 'it\'s )'", MY, "write '' for one"),
    (r'd = "it\"s )"', MY, "write '' for one"),
    (r"d = '\') or (1=1 or d = '", ("standard", "postgresql"), "closes none"),
    (r"d = E'a\' or 1=1", ("postgresql",), "never closed"),
    ("d = $x$ a $y$", ("postgresql",), "never closed"),
    ("1=1--1) or (1=1", MY, "closes none"),
    ("", ALL, "is empty"),
    ("  \n", ALL, "is empty"),
    ("d = '\0'", ALL, "NUL"),
]


@pytest.mark.parametrize(("text", "database"), [(case[0], one) for case in WHOLE for one in case[1]])
def test_one_whole_expression(text: str, database: str) -> None:
    assert DATABASES[database].flaw(text) is None


@pytest.mark.parametrize(
    ("text", "database", "said"), [(text, one, said) for text, databases, said in BROKEN for one in databases]
)
def test_what_reaches_beyond_itself(text: str, database: str, said: str) -> None:
    assert said in str(DATABASES[database].flaw(text))


WORDS = [
    ("exists (SELECT 1 from todo)", ALL, {"exists", "select", "from", "todo"}),
    ("d = 'select' and e = 1", ALL, {"d", "and", "e"}),
    ("id in (table todo)", ALL, {"id", "in", "table", "todo"}),
    ("`select` = 1 and json_table_id = 2", MY, {"and", "json_table_id"}),
    ('"select" = 1 or d = $$ select $$', ("postgresql",), {"or", "d"}),
    (r"d = '\' or (select 1) or e = '", MY, {"d", "or", "select", "e"}),
]


@pytest.mark.parametrize(("text", "databases", "words"), WORDS)
def test_words_are_those_outside_strings_and_quoted_names(
    text: str, databases: tuple[str, ...], words: set[str]
) -> None:
    for name in databases:
        assert DATABASES[name].words(text) == words


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("SELECT 1", False),
        ("(SELECT 1) UNION (SELECT 2)", False),
        (" /* traceparent */ (/* UPDATE */ select 1)", False),
        ("WITH found AS (SELECT 1) SELECT * FROM found", False),
        ("WITH gone AS (DELETE FROM jobs RETURNING id) SELECT * FROM gone", True),
        ("/* SELECT */ INSERT INTO effects VALUES (1)", True),
        ("UPDATE effects SET n = 1", True),
        ("SELECTED", True),
        ("/* " * 50 + "*/ " * 50 + "CALL f()", True),
    ],
)
def test_what_changes_no_row_is_known_by_its_first_word(statement: str, changes: bool) -> None:
    assert (CHANGES_NOTHING.match(statement) is None) == changes
