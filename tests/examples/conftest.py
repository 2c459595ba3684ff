"""Examples run here at a small size, each on an empty database of its own, with the options of its command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.article import Connection, connected
from examples.command import Example, defaults
from examples.report import Figure
from tests.backends import Backend

Small = Callable[..., dict[str, str]]


@pytest.fixture
def small(database: Backend) -> Small:
    """`small(example, jobs=100)`: run it all, at another size; each figure by what it tells."""

    def run(example: Example, **sizes: Any) -> dict[str, str]:
        return told(example.run(database.url, at(example, **sizes)))

    return run


def at(example: Example, **sizes: Any) -> argparse.Namespace:
    """The example's options, with other sizes than the article's."""
    return argparse.Namespace(**{**vars(defaults(example)), **sizes})


def told(figures: Iterator[Figure]) -> dict[str, str]:
    return {figure.what: figure.here for figure in figures}


@pytest.fixture
def db(database: Backend) -> Iterator[Connection]:
    """A plain driver's connection to the database of this test."""
    with connected(database.url, read_committed=True) as connection:
        yield connection
