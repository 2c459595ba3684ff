"""What a client needs to know of each database: how its URL looks and how it says its version."""

from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import URL, create_engine, pool, text

Backend = Literal["mysql", "mariadb", "postgres"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

NAME = "claimjobs"  # of the database and of the account alike


@dataclass(frozen=True)
class Client:
    driver: str
    port: int
    query: dict[str, str]
    ask_version: str


_MYSQL = Client("mysql+pymysql", 3306, {"charset": "utf8mb4"}, "SELECT VERSION()")
_POSTGRES = Client("postgresql+psycopg", 5432, {}, "SHOW server_version")
CLIENTS: dict[Backend, Client] = {"mysql": _MYSQL, "mariadb": _MYSQL, "postgres": _POSTGRES}


def url(backend: Backend, host: str, port: int, password: str) -> str:
    client = CLIENTS[backend]
    made = URL.create(client.driver, NAME, password, host, port, NAME, client.query)
    return made.render_as_string(hide_password=False)


def version(backend: Backend, at: str) -> str:
    """The version in the server's own words; raises SQLAlchemyError while it does not answer."""
    engine = create_engine(at, poolclass=pool.NullPool)
    with engine.connect() as connection:
        return str(connection.scalar(text(CLIENTS[backend].ask_version)))
