"""Servers of a module's own whose settings and accounts a test changes, as an administrator or a failover does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from tests.backends import Backend


@contextmanager
def limited_user(own: Backend, connections: int) -> Iterator[str]:
    """The URL of a user with so many connections at most."""
    url = sa.make_url(own.url).set(username="limited", password="limited")
    grants = {
        "postgres": [
            f"CREATE ROLE limited LOGIN PASSWORD 'limited' CONNECTION LIMIT {connections}",
            "GRANT USAGE ON SCHEMA public TO limited",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO limited",
            "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO limited",
        ]
    }
    others = [
        f"CREATE USER limited@'%' IDENTIFIED BY 'limited' WITH MAX_USER_CONNECTIONS {connections}",
        f"GRANT ALL ON {url.database}.* TO limited@'%'",
    ]
    gone = {"postgres": ["DROP OWNED BY limited", "DROP ROLE limited"]}
    for statement in grants.get(own.family, others):
        own.run(statement)
    try:
        yield url.render_as_string(hide_password=False)
    finally:
        for statement in gone.get(own.family, ["DROP USER limited@'%'"]):
            own.run(statement)


READ_ONLY = {
    "postgres": ("ALTER SYSTEM SET default_transaction_read_only = {}", "SELECT pg_reload_conf()"),
    "mysql": ("SET GLOBAL read_only = {}",),
    "mariadb": ("SET GLOBAL read_only = {}",),
}


def set_read_only(own: Backend, state: str) -> None:
    """As a server is that was a primary until now. Returns when the server knows of it."""
    engine = own.new_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in READ_ONLY[own.family]:
            connection.execute(sa.text(statement.format(state)))
        if own.family == "postgres":
            shown = sa.text("SHOW default_transaction_read_only")
            own.wait_for(lambda: connection.scalar(shown) == state.lower(), "the setting is known")
