"""A server that somebody else runs, named by CLAIMJOBS_TEST_MYSQL_URL and its like."""

import os
from dataclasses import dataclass

from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from servers.backends import CLIENTS, Backend
from servers.errors import Unavailable
from servers.server import Server

ANSWER_SECONDS = 30


@dataclass(frozen=True)
class EnvironmentServer:
    backend: Backend
    variable: str
    url: str

    def describe(self) -> str:
        with self.start() as server:
            return f"{server.version}, {server.how}"

    def fetch(self) -> str:
        return self.describe()

    def start(self, *, durable: bool = True) -> Server:
        return Server(self.backend, self.url, self.variable).wait(ANSWER_SECONDS)


def find(backend: Backend) -> EnvironmentServer | None:
    """The server of this backend's variable, or None when it is unset or empty."""
    variable = f"CLAIMJOBS_TEST_{backend.upper()}_URL"
    value = os.environ.get(variable)
    return EnvironmentServer(backend, variable, _with_driver(backend, variable, value)) if value else None


def _with_driver(backend: Backend, variable: str, value: str) -> str:
    """`mysql://...` names no driver: the ones that claimjobs installs are meant."""
    try:
        url = make_url(value)
    except SQLAlchemyError as error:
        raise Unavailable(f"{variable} is not a database URL: write {backend}://user:password@host/name") from error
    named = url if "+" in url.drivername else url.set(drivername=CLIENTS[backend].driver)
    return named.render_as_string(hide_password=False)
