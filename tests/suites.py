"""Which tests run in which suite: a plugin of pytest, with the options `--suite` and `--server`.

everything  Each test on every server, with all its parameters. The default, for whoever names a file.
test        `make test`: each test function once on Postgres and once on MySQL, with its first parameters; the unit
            tests, which need no server, with all of theirs. A marker adds to that or takes from it, and says why:
              @pytest.mark.each_value("name", "why")   each value of a parameter, or with step=3 each third one; servers
                                                       and all else take turns
              @pytest.mark.one_server("why")       on Postgres or on MySQL; functions take turns
              pytest.param(..., marks=pytest.mark.pair("why"))   this parameter, too, on each of the two
              @pytest.mark.mariadb("why")          on MariaDB, too
              @pytest.mark.thorough("why")         not at all
check       `make check`: of the suite `test` what is marked `core`, on Postgres, and the unit tests.
rest        What `make test-all` runs beside `test`: all parameters on Postgres and MySQL; on MariaDB each
            function with its first parameters, the pairs, and what no other database can run.

A test marked `requires("a capability")` is collected for the databases only that have it (see CAPABILITIES).
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import pytest

from tests.flavours import CAPABILITIES, FAMILIES

SUITES: Final = ("everything", "test", "check", "rest")
FAST: Final = ("postgres", "mysql")
"""The servers of the suite `test`, in the order in which they take turns."""
NO_SERVER: Final = "none"
MARKERS: Final = (
    "thorough(why): it is left out of `make test`",
    "each_value(name, why, step=1): `make test` runs it with each value of this parameter, on one server each",
    "one_server(why): `make test` runs it on Postgres or on MySQL",
    "pair(why): `make test` runs it with this parameter, too",
    "mariadb(why): `make test` runs it on MariaDB, too",
    "core: `make check` runs it on Postgres",
    "requires(capability): only databases that have it run this",
)
REASONS: Final = {"thorough": 1, "each_value": 2, "one_server": 1, "pair": 1, "mariadb": 1}
"""Markers that say why, and how many words they are given."""
WITHOUT_SERVER: Final = "unit"
"""The folder of tests that need none."""

Parameters = dict[str, int]
"""A test's parameters but for its server: the number of each one's value, in the order in which they are written."""
NUMBERS: Final = pytest.StashKey[Parameters]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", choices=SUITES, default="everything", help="which tests run: see tests/suites.py")
    parser.addoption(
        "--server", choices=(*FAMILIES, NO_SERVER), help="only the tests on this one (none: those that name no server)"
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _check_reasons(items)
    chosen = [item for item in items if _can_run(item)]
    chosen = _of_suite(config.getoption("--suite"), chosen)
    chosen = _of_server(config.getoption("--server"), chosen)
    kept = set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = chosen


def _of_suite(suite: str, items: list[pytest.Item]) -> list[pytest.Item]:
    if suite == "everything":
        return items
    by_function: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    for function in by_function.values():
        _number(function)
    of_function = {"test": _fast, "check": _checked, "rest": _rest}[suite]
    chosen = {id(item) for function in by_function.values() for item in of_function(function)}
    return [item for item in items if id(item) in chosen]  # in pytest's order: it saves set-ups of modules


def _of_server(server: str | None, items: list[pytest.Item]) -> list[pytest.Item]:
    if server is None:
        return items
    return [item for item in items if _family_of(item) == server]


def _family_of(item: pytest.Item) -> str:
    return server_of(item) or NO_SERVER


def _checked(items: list[pytest.Item]) -> list[pytest.Item]:
    return [item for item in _fast(items) if _is_core(item)]


def _rest(items: list[pytest.Item]) -> list[pytest.Item]:
    fast = _fast(items)
    first = _first(items)
    only = not any(server_of(item) in (None, *FAST) for item in items)
    known = set(map(id, fast))
    return [item for item in items if id(item) not in known and (only or _is_thorough(item, first))]


def _is_thorough(item: pytest.Item, first: Parameters) -> bool:
    return server_of(item) in (None, *FAST) or _parameters(item) == first or item.get_closest_marker("pair") is not None


def _fast(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items of one function that are in the suite `test`."""
    items = [item for item in items if not item.get_closest_marker("thorough")]
    wanted = (*FAST, "mariadb") if items and items[0].get_closest_marker("mariadb") else FAST
    there = [item for item in items if server_of(item) in (None, *wanted)]
    if not there:
        return []
    if _is_unit(there[0]):
        return there
    if each := there[0].get_closest_marker("each_value"):
        turns = set(map(id, _in_turn(there, each.args[0])[:: each.kwargs.get("step", 1)]))
        return [item for item in there if id(item) in turns or item.get_closest_marker("pair")]
    if there[0].get_closest_marker("one_server"):
        there = _of_one_server(there)
    first = _first(there)
    return [item for item in there if _parameters(item) == first or item.get_closest_marker("pair")]


def _in_turn(items: list[pytest.Item], name: str) -> list[pytest.Item]:
    by_value: dict[int, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_value[_parameters(item)[name]].append(item)
    return [same[turn % len(same)] for turn, same in enumerate(by_value.values())]


def _of_one_server(items: list[pytest.Item]) -> list[pytest.Item]:
    """Those of one server of the function, which its name chooses: about half of the functions run on each."""
    servers = sorted({server_of(item) or "" for item in items})
    chosen = servers[zlib.crc32(items[0].nodeid.partition("[")[0].encode()) % len(servers)]
    return [item for item in items if (server_of(item) or "") == chosen]


def server_of(item: pytest.Item) -> str | None:
    """The server that an item runs on; None: it has no parameter that says so."""
    return next((value for value in _values(item).values() if isinstance(value, str) and value in FAMILIES), None)


def _number(items: list[pytest.Item]) -> None:
    """Number the values of each parameter of a function. pytest's own numbers are those of products, too."""
    seen: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        numbers = item.stash[NUMBERS] = {}
        for name, value in _values(item).items():
            if isinstance(value, str) and value in FAMILIES:
                continue
            known = [number for number, one in enumerate(seen[name]) if one is value]
            numbers[name] = known[0] if known else len(seen[name])
            if not known:
                seen[name].append(value)


def _parameters(item: pytest.Item) -> Parameters:
    return item.stash[NUMBERS]


def _first(items: list[pytest.Item]) -> Parameters:
    return min(map(_parameters, items), key=lambda numbers: sorted(numbers.items()))


def _values(item: pytest.Item) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _is_core(item: pytest.Item) -> bool:
    return _is_unit(item) or (item.get_closest_marker("core") is not None and server_of(item) in (None, FAST[0]))


def _is_unit(item: pytest.Item) -> bool:
    return item.path.parent.name == WITHOUT_SERVER


def _can_run(item: pytest.Item) -> bool:
    server = server_of(item)
    needed = [str(marker.args[0]) for marker in item.iter_markers("requires")]
    return server is None or all(server in CAPABILITIES[capability][1] for capability in needed)


def _check_reasons(items: Iterable[pytest.Item]) -> None:
    for item in items:
        for name, count in REASONS.items():
            if any(len(marker.args) != count for marker in item.iter_markers(name)):
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{name} says why, in one sentence")
