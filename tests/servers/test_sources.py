"""The order of the sources; no server is started here."""

import pytest

from servers import Unavailable, containers
from servers.containers import ContainerSource
from servers.environment import EnvironmentServer
from servers.programs import ProgramSource
from servers.sources import BACKENDS, Backend, choose

every_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in BACKENDS:
        monkeypatch.delenv(f"CLAIMJOBS_TEST_{backend.upper()}_URL", raising=False)
        monkeypatch.delenv(f"CLAIMJOBS_TEST_{backend.upper()}_IMAGE", raising=False)
    monkeypatch.setattr(containers, "engine_answers", lambda: False)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "engine_answers", lambda: True)


@every_backend
@pytest.mark.usefixtures("docker")
def test_an_url_in_the_environment_comes_first(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"CLAIMJOBS_TEST_{backend.upper()}_URL", "some://user:secret@host/name")
    assert isinstance(choose(backend), EnvironmentServer)


@every_backend
@pytest.mark.usefixtures("docker")
def test_docker_comes_second(backend: Backend) -> None:
    assert isinstance(choose(backend), ContainerSource)


@every_backend
def test_the_servers_own_program_comes_last(backend: Backend) -> None:
    assert isinstance(choose(backend), ProgramSource)


@pytest.mark.usefixtures("docker")
def test_an_image_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMJOBS_TEST_MYSQL_IMAGE", "mysql:8.0")
    assert choose("mysql").describe() == "testcontainers mysql:8.0"


def test_a_chosen_image_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMJOBS_TEST_MYSQL_IMAGE", "mysql:8.0")
    with pytest.raises(Unavailable, match="no Docker engine answers: start Docker, or unset"):
        choose("mysql")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("mysql://me:secret@host/name", "mysql+pymysql://me:secret@host/name"),
        ("mysql+mysqldb://me@host/name", "mysql+mysqldb://me@host/name"),
    ],
)
def test_an_url_without_a_driver_means_the_installed_one(
    given: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAIMJOBS_TEST_MYSQL_URL", given)
    source = choose("mysql")
    assert isinstance(source, EnvironmentServer)
    assert source.url == meant


def test_what_is_no_url_gets_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMJOBS_TEST_POSTGRES_URL", "localhost")
    with pytest.raises(Unavailable, match="write postgres://user:password@host/name"):
        choose("postgres")


def test_an_engine_that_is_not_there_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert not containers.engine_answers()
