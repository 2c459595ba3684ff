"""The site of the pages is made without a warning; its reference has each public name; its pages are short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import claimjobs
from claimjobs import errors
from tests.docs.markdown import GUIDE, README, ROOT, START, TESTING

MOST_WORDS = 900
DOCS = ROOT / "docs"


def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    """A link that leads nowhere, a page in no table of contents and a docstring that is no reST are warnings."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    words = ["--doctree-dir", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    assert [name for name in claimjobs.__all__ if f'id="claimjobs.{name}"' not in text and name not in _ERRORS] == []
    shown = (tmp_path / "site" / "reference" / "errors.html").read_text(encoding="utf-8")
    names = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(names) > 30
    assert [name for name in names if f">{name}<" not in shown] == []


_ERRORS = frozenset(name for name in claimjobs.__all__ if hasattr(errors, name))
"""They are on a page of their own."""


@pytest.mark.parametrize(
    "page", [*START.glob("*.md"), *GUIDE, TESTING], ids=lambda page: page.relative_to(DOCS).as_posix()
)
@pytest.mark.each_value("page", "it costs next to nothing")
def test_a_page_of_the_guide_answers_one_question(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall("^# ", re.sub("^```.*?^```$", "", text, flags=re.M | re.S), re.M)) == 1
    most = MOST_WORDS if page.parent.name != "reference" else 1_500
    assert len(text.split()) <= most


def test_the_readme_names_the_pages() -> None:
    assert "docs/index.md" in README.read_text(encoding="utf-8")
