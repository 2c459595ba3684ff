"""Pages that are made are fresh, links lead somewhere, and what is said of the code is so."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import io
import re
import tokenize
from pathlib import Path

import pytest

import claimjobs
from claimjobs.cli import exits
from claimjobs.dialects import DIALECTS
from claimjobs.options import Liveness, Retry
from docs import make_chaos, make_commands, make_llms, make_mutants, make_sql, sql_statements
from tests.docs.commands import every
from tests.docs.markdown import COMMANDS, DBA, MANUAL, PAGES, ROOT, anchors, blocks, links, prose, table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.each_value("page", "it costs next to nothing")
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if fragment:
            assert fragment in anchors(target), link


def test_every_decision_is_reached_from_the_design() -> None:
    design = ROOT / "docs" / "design.md"
    reached = {link for link in links(design) if link.startswith("decisions/")}
    assert reached == {f"decisions/{page.name}" for page in (ROOT / "docs" / "decisions").glob("0*.md")}


def test_pictures_load_nothing_from_elsewhere() -> None:
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        addresses = re.findall(r"""(?:url\(|href=)["']?(https?://[^"')]+)""", picture.read_text(encoding="utf-8"))
        assert addresses == [], picture.name


# --- made pages ----------------------------------------------------------------------------------------------


def test_the_page_of_commands_is_fresh() -> None:
    assert make_commands.PAGE.read_text(encoding="utf-8") == make_commands.page(), "run `python -m docs.make_commands`"


def test_the_page_of_commands_has_a_place_for_each_command() -> None:
    page = make_commands.PAGE.read_text(encoding="utf-8")
    assert [words for words in map(" ".join, every()) if f"<!-- options: {words} -->" not in page] == []


def test_the_list_of_pages_for_programs_is_fresh() -> None:
    assert make_llms.PAGE.read_text(encoding="utf-8") == make_llms.page(), "run `python -m docs.make_llms`"


def test_the_page_of_mutants_is_fresh() -> None:
    assert make_mutants.PAGE.read_text(encoding="utf-8") == make_mutants.page(), "run `python -m docs.make_mutants`"


@pytest.mark.parametrize("family", sql_statements.URLS)
def test_the_page_of_sql_shows_what_the_library_compiles(family: str) -> None:
    title = DIALECTS["postgresql" if family == "postgres" else family].title
    text = make_sql.PAGE.read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    shown = re.findall(r"```sql\n(.*?)\n```", section, re.DOTALL)
    compiled = [*sql_statements.statements(family).values(), make_sql.tables(family)]
    assert shown == compiled, "run `python -m docs.make_sql`"


def test_the_page_of_sql_shows_no_claim_that_locks_more_than_it_takes() -> None:
    text = make_sql.PAGE.read_text(encoding="utf-8")
    counted = re.findall(r"^Row locks at the commit: (.*)\.$", text, re.MULTILINE)
    assert len(counted) == 3 * 8 + 1
    assert counted.count("200 rows") == 1  # what is settled, and what is claimed
    in_mysql = {f"{count} in `PRIMARY` (X,REC_NOT_GAP)" for count in (1, 2, 100)}
    assert set(counted) <= {"1 rows", "2 rows", "100 rows", "200 rows", *in_mysql}


# --- what is said of the code ---------------------------------------------------------------------------------


def test_the_exit_codes_are_those_of_the_code() -> None:
    assert table(COMMANDS, "code", "meaning") == [(str(code), meaning) for code, meaning in exits.MEANINGS.items()]


def test_the_exit_codes_are_all_there() -> None:
    numbers = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert set(exits.MEANINGS) == numbers


def test_the_versions_are_those_that_the_dialects_ask_for() -> None:
    said = {row[0]: row[1] for row in table(DBA, "database", "versions", "why not older", "drivers")}
    asked = {kind.title: f"{'.'.join(map(str, kind.oldest))} and later" for kind in DIALECTS.values()}
    assert said == asked


GUARANTEES = ROOT / "docs" / "guarantees.md"


def test_every_test_that_is_named_is_there() -> None:
    there = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    named = {name for page in PAGES for name in re.findall(r"`(test_[a-z_0-9]+)`", page.read_text(encoding="utf-8"))}
    assert len(named) > 30
    assert named - there == set()


def test_the_figures_of_the_guarantees_are_those_of_the_code() -> None:
    for _, seconds, where in table(GUARANTEES, "figure", "seconds", "where"):
        assert [_figure(name) for name in re.findall(r"`([\w.]+\.\w+)`", where)] == [
            float(figure) for figure in seconds.split(", ")
        ], where


def _figure(name: str) -> float:
    """`Liveness.lease`: the default of a class; `lease.registry.SAME_START_SECONDS`: a constant of a module."""
    where, _, attribute = name.rpartition(".")
    if where in ("Liveness", "Retry"):
        return float(getattr({"Liveness": Liveness, "Retry": Retry}[where](), attribute))
    found = importlib.import_module(f"claimjobs.{where}")
    return float(getattr(found, attribute))


def test_a_table_of_chaos_finds_its_place_and_replaces_the_one_before() -> None:
    page = GUARANTEES.read_text(encoding="utf-8")
    once = make_chaos.with_table(page, "| fault | times |\n")
    twice = make_chaos.with_table(once, "| another |\n")
    assert "-->\n\n| fault | times |\n\n<!--" in once
    assert twice == once.replace("| fault | times |", "| another |")
    with pytest.raises(ValueError, match="no place"):
        make_chaos.with_table("nothing", "| first |")


def test_every_public_name_has_a_docstring() -> None:
    for name in claimjobs.__all__:
        public = getattr(claimjobs, name)
        assert inspect.getdoc(public), name
        if inspect.isclass(public):
            for member, value in vars(public).items():
                if not member.startswith("_") and callable(getattr(value, "fget", value)):
                    assert inspect.getdoc(value), f"{name}.{member}"


def test_every_public_name_is_told_of() -> None:
    told = "".join(page.read_text(encoding="utf-8") for page in MANUAL)
    assert [name for name in claimjobs.__all__ if name.lower() not in told.lower()] == []


def test_the_changelog_begins_with_this_version() -> None:
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{claimjobs.__version__}]" in log or "## [Unreleased]" in log


def test_each_class_that_a_page_names_is_there() -> None:
    others = {"KillMode", "PgBouncer", "ReadWritePaths", "TestClient"}
    for page in (*MANUAL, GUARANTEES):
        named = re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", " ".join(re.findall(r"`[^`]+`", prose(page))))
        assert {*named} - names_in_code() - others == set(), page


def test_each_class_that_a_docstring_names_is_there() -> None:
    others = {"AsyncEngine", "OpenTelemetry"}
    for file in (ROOT / "claimjobs").rglob("*.py"):
        nodes = (node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, WITH_DOCS))
        named = re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", " ".join(ast.get_docstring(node) or "" for node in nodes))
        assert {*named} - names_in_code() - others == set(), file


def test_each_name_in_the_design_is_there() -> None:
    code = " ".join(re.findall(r"`[^`]+`", prose(ROOT / "docs" / "design.md")))
    named = {name for name in re.findall(r"[A-Za-z_]\w*", code) if not name.isupper()}
    assert named - names_of("claimjobs", "dialects", "docs", "tests") == set()


WITH_DOCS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def names_in_code() -> set[str]:
    """The names in the library's code, without the words of its texts."""
    files = (file.read_bytes() for file in (ROOT / "claimjobs").rglob("*.py"))
    tokens = (token for file in files for token in tokenize.tokenize(io.BytesIO(file).readline))
    return {token.string for token in tokens if token.type == tokenize.NAME}


def names_of(*folders: str) -> set[str]:
    """All words of the code in these folders, and the names of its files."""
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    words = {word for file in files for word in re.findall(r"[A-Za-z_]\w*", file.read_text(encoding="utf-8"))}
    return words | {file.stem for file in files}


def test_the_glossary_has_twenty_words_at_most() -> None:
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    words = re.findall(r"\*\*(.+?)\*\* - ", design.partition("\n## Words\n")[2].partition("\n## ")[0])
    assert 10 < len(words) <= 20


def test_layers_in_the_design_are_those_that_are_enforced() -> None:
    config = (ROOT / ".importlinter").read_text(encoding="utf-8")
    enforced = re.search(r"layers =\n((?:    .+\n)+)", config)
    assert enforced
    names = re.findall(r"\w+", enforced[1])
    [shown] = [block.text for block in blocks(ROOT / "docs" / "design.md", "text") if "supervisor" in block.text]
    first_words = [line.split("  ")[0] for line in shown.splitlines() if not line.startswith(" ")]
    assert re.findall(r"\w+", " ".join(first_words)) == names
