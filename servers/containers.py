"""A server in a container, where a Docker engine answers."""

import os
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from docker.errors import DockerException  # type: ignore[import-untyped]
from sqlalchemy import create_engine, make_url, pool, text
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient, get_docker_host

from servers.backends import CLIENTS, NAME, Backend, url
from servers.errors import Unavailable
from servers.server import Server

DEFAULT_IMAGES: dict[Backend, str] = {
    "mysql": "mysql:8.4",
    "mariadb": "mariadb:11",
    "postgres": "postgres:18",
}
COMMANDS: dict[Backend, list[str]] = {
    "mysql": ["--max-connections=200"],
    "mariadb": ["--max-connections=200"],
    "postgres": ["-c", "max_connections=200"],
}
DEFAULT_HOST = "unix:///var/run/docker.sock"
PING_SECONDS = 3
START_SECONDS = 180


@dataclass(frozen=True)
class ContainerSource:
    backend: Backend
    image: str

    def describe(self) -> str:
        return f"testcontainers {self.image}"

    def fetch(self) -> str:
        try:
            DockerClient().client.images.pull(self.image)
        except DockerException as error:
            raise Unavailable(f"cannot pull {self.image}: check its name and the network: {error}") from error
        return self.describe()

    def start(self, *, durable: bool = True) -> Server:
        try:
            server = ContainerServer(self)
        except DockerException as error:
            raise Unavailable(f"no container of {self.image}: try `docker run {self.image}`: {error}") from error
        try:
            return server.begin()
        except BaseException:
            server.close()
            raise


class ContainerServer(Server):
    """testcontainers' own reaper removes the container when this process dies."""

    def __init__(self, source: ContainerSource) -> None:
        port, password = CLIENTS[source.backend].port, secrets.token_hex(8)
        container = DockerContainer(source.image).with_exposed_ports(port)
        container.with_command(COMMANDS[source.backend])
        for name, value in _settings(source.backend, password).items():
            container.with_env(name, value)
        self._container = container.start()
        at = url(source.backend, container.get_container_host_ip(), int(container.get_exposed_port(port)), password)
        super().__init__(source.backend, at, source.describe())

    def begin(self) -> Server:
        self.wait(START_SECONDS)
        if self.backend != "postgres":  # whose account owns the server anyway
            self._let_account_make_databases()
        return self

    def _let_account_make_databases(self) -> None:
        engine = create_engine(make_url(self.url).set(username="root"), poolclass=pool.NullPool)
        with engine.begin() as connection:
            connection.execute(text(f"GRANT ALL ON *.* TO '{NAME}'@'%' WITH GRANT OPTION"))

    def close(self) -> None:
        self._container.stop()


def _settings(backend: Backend, password: str) -> dict[str, str]:
    if backend == "postgres":
        return {"POSTGRES_USER": NAME, "POSTGRES_PASSWORD": password, "POSTGRES_DB": NAME}
    prefix = backend.upper()
    return {
        f"{prefix}_ROOT_PASSWORD": password,
        f"{prefix}_USER": NAME,
        f"{prefix}_PASSWORD": password,
        f"{prefix}_DATABASE": NAME,
    }


def find(backend: Backend) -> ContainerSource | None:
    """A container where Docker answers; an image that was asked for by name is never silently replaced."""
    variable = f"CLAIMJOBS_TEST_{backend.upper()}_IMAGE"
    image = os.environ.get(variable)
    if engine_answers():
        return ContainerSource(backend, image or DEFAULT_IMAGES[backend])
    if image:
        raise Unavailable(f"{variable} is {image} but no Docker engine answers: start Docker, or unset {variable}")
    return None


def engine_answers() -> bool:
    """Whether a Docker engine really answers: having its command line says nothing."""
    if not _is_open(get_docker_host() or DEFAULT_HOST):
        return False
    try:
        client = DockerClient(timeout=PING_SECONDS).client
        try:
            return bool(client.ping())
        finally:
            client.close()
    except (DockerException, OSError):
        return False


def _is_open(host: str) -> bool:
    """docker-py leaks a socket for each engine that is not there, so a local one is tried by hand first."""
    address = urlsplit(host)
    if address.scheme != "unix":
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PING_SECONDS)
        return probe.connect_ex(address.path) == 0
