"""From a URL to an engine, or to an error with the next step. No server is asked."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from claimjobs import Queue
from claimjobs.database.connect import engine_of, parse
from claimjobs.dialects.mysql.dialect import MySQL
from claimjobs.dialects.mysql.sessions import Hosts
from claimjobs.errors import UnknownDatabase

SECRET = "Tr0ub4dor-3"


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("mysql", "mysql+pymysql"),
        ("mariadb", "mariadb+pymysql"),
        ("postgres", "postgresql+psycopg"),
        ("postgresql", "postgresql+psycopg"),
        ("mysql+mysqldb", "mysql+mysqldb"),
        ("postgresql+psycopg", "postgresql+psycopg"),
    ],
)
def test_a_url_without_a_driver_means_the_ones_that_are_installed(given: str, driver: str) -> None:
    parsed = parse(f"{given}://app:{SECRET}@host:1234/shop?charset=utf8mb4")
    assert parsed.drivername == driver
    assert (parsed.username, parsed.password, parsed.host, parsed.port) == ("app", SECRET, "host", 1234)
    assert (parsed.database, parsed.query["charset"]) == ("shop", "utf8mb4")


def test_white_space_around_a_url_is_no_part_of_it() -> None:
    assert parse(" mysql://host/shop\n").database == "shop"
    assert parse("postgres://host/shop?application_name=mine\r\n").query["application_name"] == "mine"


def test_a_url_that_is_parsed_already() -> None:
    assert parse(sa.make_url("mysql://host/shop")).drivername == "mysql+pymysql"


def test_a_driver_gets_the_limits_that_it_knows() -> None:
    """PyMySQL waits for a server's greeting as for any other answer."""
    sessions = MySQL().sessions
    assert sessions.connect_arguments("pymysql", 5) == {"connect_timeout": 5, "read_timeout": 5}
    assert sessions.connect_arguments("mysqldb", 5) == {"connect_timeout": 5}


def test_an_engine_is_taken_as_it_is() -> None:
    engine = sa.create_engine("mysql+pymysql://host/shop")
    assert engine_of(engine) is engine


@pytest.mark.parametrize(
    "url",
    [
        f"sqlite:///{SECRET}.db",
        f"oracle://app:{SECRET}@host/shop",
        f"mongodb://app:{SECRET}@host/shop",
        f"mysql:/app:{SECRET}@host/shop",
        f"app:{SECRET}@host/shop",
        f"mysql://app:{SECRET}@host:port/shop",
        f"postgresql+asyncpgg://app:{SECRET}@host/shop",
        "",
    ],
)
def test_an_unknown_database_is_told_with_an_example_and_no_password(url: str) -> None:
    with pytest.raises(UnknownDatabase, match="mysql://user:password@host/database or postgresql://") as raised:
        Queue(url)
    error: BaseException | None = raised.value
    while error:
        assert SECRET not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    "url",
    [
        "mysql://app:x@{}@host:3306/shop",
        "postgresql://app:x@{}@host/shop",
        "postgresql://app:x@{}/y@host/shop",
        "mysql://app:x@y:{}@host/shop",
        "mysql://app:x@[{}@host/shop",
        "mysql://app/x:{}@host/shop",
        sa.URL.create("mysql", "app", "x", f"{SECRET}@host"),
    ],
)
def test_an_at_sign_that_would_make_a_host_of_a_password_is_refused(url: str | sa.URL) -> None:
    given = url.format(SECRET) if isinstance(url, str) else url
    with pytest.raises(UnknownDatabase, match=r"cannot be read.*(@ as %40|give one such as)") as raised:
        engine_of(given)
    assert SECRET not in f"{raised.value} {raised.value.__cause__}"


@pytest.mark.parametrize("password", ["x/y", "x:y", "x#y", "x?y", "x[y", "x]y", "/x", "x?y=z&w", "%40x"])
def test_a_password_that_is_not_quoted_is_read_whole_if_there_is_one_way_to_read_it(password: str) -> None:
    for scheme in ("mysql", "postgresql"):
        parsed = parse(f"{scheme}://app:{password}@host:1/shop?note=y")
        assert (parsed.password, parsed.host, parsed.database) == (password.replace("%40", "@"), "host", "shop")


@pytest.mark.parametrize("url", ["mysql://host/shop?user=app&note=a@b", "postgresql://app@server:x@host/shop"])
def test_an_at_sign_that_is_no_riddle_stays(url: str) -> None:
    assert parse(url).host == "host"


def test_an_engine_of_another_database_is_refused() -> None:
    with pytest.raises(UnknownDatabase, match="does not know 'sqlite', only mariadb, mysql, postgresql"):
        Queue(sa.create_engine("sqlite://"))


@pytest.mark.parametrize(
    ("url", "module"),
    [("mysql+mysqldb", "MySQLdb"), ("postgresql+psycopg", "psycopg"), ("mysql", "pymysql")],
)
def test_a_driver_that_is_not_installed_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        UnknownDatabase, match=r"is not installed .*: pip install .*, or leave the driver out"
    ) as raised:
        Queue(f"{url}://app:{SECRET}@host/shop")
    assert SECRET not in str(raised.value)


OTHER_DRIVERS = {
    "postgresql+psycopg2": "only with psycopg: write postgresql+psycopg://",
    "postgresql+psycopg_async": "only with psycopg: write postgresql+psycopg://",
    "postgresql+asyncpg": "only with psycopg: write postgresql+psycopg://",
    "postgresql+pg8000": "only with psycopg: write postgresql+psycopg://",
    "mysql+mysqlconnector": "only with pymysql or mysqldb: write mysql+pymysql://... or mysql+mysqldb://",
    "mysql+asyncmy": "only with pymysql or mysqldb: write mysql+pymysql://... or mysql+mysqldb://",
    "mysql+aiomysql": "only with pymysql or mysqldb: write mysql+pymysql://... or mysql+mysqldb://",
    "mariadb+mariadbconnector": "only with pymysql or mysqldb: write mariadb+pymysql://... or mariadb+mysqldb://",
}


@pytest.mark.parametrize("given", OTHER_DRIVERS)
def test_a_driver_that_is_not_supported_is_told_with_those_that_are(given: str) -> None:
    """Installed or not: nobody should install it first."""
    with pytest.raises(UnknownDatabase, match=given.partition("+")[2]) as raised:
        Queue(f"{given}://app:{SECRET}@host/shop")
    assert OTHER_DRIVERS[given] in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("given", OTHER_DRIVERS)
def test_an_engine_with_a_driver_that_is_not_supported_is_refused(given: str) -> None:
    family, _, driver = given.partition("+")
    engine = sa.create_engine(f"{family}+{'psycopg' if family == 'postgresql' else 'pymysql'}://app:{SECRET}@host/shop")
    engine.dialect.driver = driver  # none of them is installed here, and SQLAlchemy loads a driver for its engine
    with pytest.raises(UnknownDatabase) as raised:
        Queue(engine)
    assert OTHER_DRIVERS[given] in str(raised.value)
    assert SECRET not in str(raised.value)


def test_the_url_of_an_async_engine_is_used_and_its_dialect_alone_is_refused() -> None:
    engine = sa.create_engine(f"postgresql+psycopg_async://app:{SECRET}@host/shop")
    with pytest.raises(UnknownDatabase, match=r"'psycopg \(async\)', only with psycopg: write postgresql\+psycopg"):
        Queue(engine)
    queue = Queue(SimpleNamespace(sync_engine=engine))  # type: ignore[arg-type]  # AsyncEngine has it
    assert queue.engine.url.render_as_string(False) == f"postgresql+psycopg://app:{SECRET}@host/shop"


def test_nothing_is_asked_of_a_server_before_the_first_use() -> None:
    Queue("postgresql://app@host.invalid/shop").close()


def test_a_delete_of_joined_rows_that_is_interrupted_is_run_again() -> None:
    """MySQL has no number for it (seen in a run whose consumers were called while they were at work)."""
    joined = Exception(1105, "An error occurred in multi-table update")
    assert MySQL().errors.transient_kind(joined) == "interrupted"
    assert MySQL().errors.transient_kind(Exception(1105, "Unknown error")) is None


def test_a_transaction_that_a_group_rolled_back_before_a_savepoint_ended_may_be_tried_again() -> None:
    gone = "Got error {} - '{}' from storage engine"
    no_savepoint = Exception(1030, gone.format(153, "No savepoint with that name"))
    assert MySQL().errors.transient_kind(no_savepoint) == "serialization"
    assert MySQL().errors.transient_kind(Exception(1030, gone.format(28, "No space left on device"))) is None


@pytest.mark.parametrize("code", [8002, 8005, 8022, 8028, 9007])
def test_an_error_after_which_tidb_wants_the_transaction_again(code: int) -> None:
    assert MySQL().errors.transient_kind(Exception(code, "Write conflict")) == "serialization"


def test_the_number_of_a_session_is_asked_for_in_words_that_no_pooler_answers_itself() -> None:
    asked = str(sa.select(MySQL().sessions.number.label("session")).compile(dialect=mysql.dialect()))
    assert asked.startswith("SELECT connection_id() + 0")


@pytest.mark.parametrize("host", ["db1:port", "db1:99999", ":3306"])
def test_a_host_of_several_that_cannot_be_read_is_told(host: str) -> None:
    with pytest.raises(UnknownDatabase, match="the driver cannot use this URL") as raised:
        engine_of(f"mysql://app:{SECRET}@/shop?host=db0&host={host}")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("query", ["host=db1&host=db2&port=1", "host=db1&port=x"])
def test_options_that_sqlalchemy_refuses_are_those_of_the_url(query: str) -> None:
    with pytest.raises(UnknownDatabase, match=r"cannot use this URL .*: check its options \(host, port\)"):
        engine_of(f"postgresql://app:{SECRET}@/shop?{query}")


def test_a_port_in_front_is_that_of_one_host_among_the_options() -> None:
    engine = engine_of(f"postgresql://app:{SECRET}@:5433/shop?host=/run/postgresql")
    _, options = engine.dialect.create_connect_args(engine.url)
    assert (options["host"], options["port"]) == ("/run/postgresql", 5433)
    for url in ("mysql://app@:3307/shop?host=db1", "mysql://app@/shop?host=db1&port=3307"):
        assert Hosts(sa.make_url(url))._addresses == [{"host": "db1", "port": 3307}]
