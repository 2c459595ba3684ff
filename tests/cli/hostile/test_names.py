"""URLs that lead to no database, and names that no table can have: what a real server says to them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from claimjobs.cli import exits
from claimjobs.table.definitions import SHARED_TABLES
from tests.backends import Backend, Servers
from tests.cli.command import Ended, claimjobs, shared
from tests.flavours import FAMILIES, Family

COMMANDS = ["status", "setup-tables", "list --state dead", "enqueue - --format jsonl"]
LONGEST = {"postgres": 63, "mysql": 64, "mariadb": 64}
"""How long a name may be: in bytes on Postgres, else in characters."""
SUFFIX = len("_status")
"""The longest of those that names of a table's parts have."""

TAKEN: dict[Family, dict[str, str]] = {
    "mysql": {"a view": "CREATE VIEW taken AS SELECT * FROM other"},
    "mariadb": {
        "a view": "CREATE VIEW taken AS SELECT * FROM other",
        "a sequence": "CREATE SEQUENCE taken",
    },
    "postgres": {
        "an index": "CREATE INDEX taken ON other (x)",
        "a view": "CREATE VIEW taken AS SELECT * FROM other",
        "a materialized view": "CREATE MATERIALIZED VIEW taken AS SELECT * FROM other",
        "a sequence": "CREATE SEQUENCE taken",
        "a type": "CREATE TYPE taken AS ENUM ('a')",
        "a composite type": "CREATE TYPE taken AS (x INTEGER)",
        "a table, the name of the index": "CREATE TABLE taken_claim (x INTEGER)",
        "a view, the name of the index": "CREATE VIEW taken_claim AS SELECT * FROM other",
        "a type, the name of the states": "CREATE TYPE taken_status AS ENUM ('a')",
    },
}
"""What may have the name, or that of a part of the table, before us."""
TAKEN_EVERYWHERE = {
    "another table": "CREATE TABLE taken (x INTEGER)",
    "another table with a key": "CREATE TABLE taken (x INTEGER PRIMARY KEY)",
}
CASES = [(family, what) for family in FAMILIES for what in (*TAKEN_EVERYWHERE, *TAKEN[family])]


@pytest.fixture(params=FAMILIES)
def database(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    lent = servers.lend(request.param)
    yield lent
    lent.close()


@pytest.fixture
def taken(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """A database in which the name `taken` is."""
    family, what = request.param
    lent = servers.lend(family)
    lent.run("CREATE TABLE other (x INTEGER)")
    lent.run({**TAKEN_EVERYWHERE, **TAKEN[family]}[what])
    yield lent
    lent.close()


# --- URLs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_url_without_a_database(database: Backend, command: str) -> None:
    url = sa.make_url(database.url)._replace(database=None)
    ended = at(url, command)
    if database.dialect.needs_database:
        refused(ended, exits.CONNECTION, "names no database", "give a URL such as mysql://user:***@host/database")
    else:
        assert ended.code in {exits.OK, exits.TABLE}, "the database that has the user's name"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["nowhere", "☃ x", "a" * 80])
def test_a_database_that_does_not_exist(database: Backend, command: str, name: str) -> None:
    url = sa.make_url(database.url).set(database=name)
    refused(at(url, command), exits.CONNECTION, "there is no such database", "create it, or correct the URL")


@pytest.mark.parametrize("command", COMMANDS[:2])
@pytest.mark.parametrize(
    "option",
    ["charset", "client_encoding", "nonsense", "collation", "sql_mode", "init_command", "options", "ssl_ca", "sslmode"],
)
def test_an_option_that_is_unknown_or_means_nothing(database: Backend, command: str, option: str) -> None:
    url = sa.make_url(database.url).update_query_dict({option: "nonsense"})
    ended = at(url, command)
    refused(ended, exits.CONNECTION, "options")
    assert f"{option}=nonsense" in ended.err


def test_a_driver_for_another_server(database: Backend) -> None:
    others = {"mysql": "mariadb", "mariadb": "postgresql", "postgres": "mysql"}
    url = sa.make_url(database.url).set(drivername=others[database.family], query={})
    refused(at(url, "status"), exits.CONNECTION, "")


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_name_as_long_as_may_be_is_taken_and_a_longer_one_refused(database: Backend, letter: str) -> None:
    size, most = _longest(database, letter, SUFFIX)
    url = sa.make_url(database.url)
    for again in ("", "", " --recreate --yes"):
        assert at(url, f"setup-tables --table {letter * most}{again}").code == exits.OK
    there = set(sa.inspect(database.engine).get_table_names())
    for length in (most + 1, LONGEST[database.family] // size, LONGEST[database.family] // size + 1, 200):
        for again in ("", "", " --recreate --yes", " --sql"):  # nothing is left halfway
            ended = at(url, f"setup-tables --table {letter * length}{again}")
            refused(ended, exits.TABLE, "cannot be made (", "choose another name for it, of at most ")
            assert _advised(ended) // size == most
        refused(at(url, f"status --table {letter * length}"), exits.TABLE, "is not in this database", "setup-tables")
    assert set(sa.inspect(database.engine).get_table_names()) == there >= {letter * most, *SHARED_TABLES}


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_side_car_of_a_table_with_a_long_name(database: Backend, letter: str) -> None:
    _, most = _longest(database, letter, len("_claims"))
    url = sa.make_url(database.url)
    for length in (most, most + 1):
        database.run(f"CREATE TABLE {letter * length} (id INTEGER PRIMARY KEY)")
    assert at(url, f"setup-tables --side-car --table {letter * most}").code == exits.OK
    for more in ("", " --sql"):
        ended = at(url, f"setup-tables --side-car --table {letter * (most + 1)}{more}")
        side_car = f"cannot have a side-car '{letter * (most + 1)}_claims' ("
        refused(ended, exits.TABLE, side_car, "choose its name in Python")


@pytest.mark.parametrize("letter", ["x", "é"])
def test_indexes_for_tables_with_long_names_can_be_added(database: Backend, letter: str) -> None:
    """Each has a name of its own, also for two tables, or two orders, whose names begin alike."""
    size = len(letter.encode()) if database.family == "postgres" else 1
    tables = [letter * ((LONGEST[database.family] - 1) // size) + end for end in "ab"]
    for name in tables:
        database.run(
            f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, status VARCHAR(16) NOT NULL, owner_id INTEGER, "
            "owner_date TIMESTAMP NULL, priority INTEGER NOT NULL DEFAULT 0)"
        )
        words = ("setup-tables", "--table", name, "--add", "claim-index", "--yes")
        assert at(sa.make_url(database.url), *words).code == exits.OK
        assert "CREATE" not in at(sa.make_url(database.url), *words).out
        index = next(
            one for one in database.queue(name, order_by="owner_date").explain().findings if one.check == "index"
        )
        assert "DROP" not in index.fix[0]
        database.run(index.fix[0])
    for name in tables:
        assert len(sa.inspect(database.engine).get_indexes(name)) == 2


@pytest.mark.parametrize("name", ["information_schema.x", "nowhere.x", "😀😀", "a\nb", "a\tb", "a\0b", "a\x7fb"])
def test_a_name_that_no_table_here_can_have(database: Backend, name: str) -> None:
    if name == "information_schema.x" and not database.dialect.needs_database:
        pytest.skip("its owner may make a table there")
    url = sa.make_url(database.url)
    if at(url, "setup-tables", "--table", name).code == exits.OK:
        assert name == "😀😀", "some servers have it"
        return
    for words in (["status"], ["setup-tables"], ["setup-tables", "--recreate", "--yes"]):
        refused(at(url, *words, "--table", name), (exits.USAGE, exits.CONNECTION, exits.TABLE), "")
    assert name not in sa.inspect(database.engine).get_table_names()


@pytest.mark.parametrize("taken", CASES, ids=lambda case: "-".join(case).replace(" ", "_"), indirect=True)
def test_a_name_that_something_else_has(taken: Backend) -> None:
    url = sa.make_url(taken.url)
    for words in ("setup-tables", "setup-tables --recreate --yes", "status", "enqueue - --format jsonl"):
        refused(at(url, f"{words} --table taken"), exits.TABLE, "'taken'")
    assert "made\n" not in at(url, "setup-tables --table taken").out.replace(shared("made"), "")
    assert set(sa.inspect(taken.engine).get_table_names()) <= {
        "other",
        "taken",
        "taken_claim",
        "claimjobs_owners",
        "claimjobs_queues",
        "claimjobs_batches",
    }


def _longest(database: Backend, letter: str, suffix: int) -> tuple[int, int]:
    """How much a letter counts, and how many of them the longest name has before such a suffix."""
    size = len(letter.encode()) if database.family == "postgres" else 1
    return size, (LONGEST[database.family] - suffix) // size


def _advised(ended: Ended) -> int:
    """How long a name may be, as an error says it."""
    found = re.search(r"of at most (\d+)", ended.err)
    return int(found[1]) if found else 0


def at(url: sa.URL, *words: str) -> Ended:
    """A command line at a URL; the first word may hold several."""
    given = [*words[0].split(), *words[1:]]
    return claimjobs(*given, env={"CLAIMJOBS_URL": url.render_as_string(hide_password=False)})


def refused(ended: Ended, codes: int | tuple[int, ...], *said: str) -> None:
    """One line says what and the next step, and nothing says where in the code."""
    assert ended.code in (codes if isinstance(codes, tuple) else (codes,)), ended.err
    told = [line for line in ended.err.splitlines() if line.startswith(("claimjobs: ", "Error: "))]
    for words in said:
        assert words in told[-1]
    assert ": " in told[-1]
    assert "Traceback" not in ended.err
    assert "shows where" not in ended.err, "an error that nobody foresaw"
