"""Encrypted connections: the options of each driver, on servers with a certificate made for the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from servers import Unavailable, programs
from servers.binaries.recipe import Tls
from servers.pgbouncer import pgbouncer
from tests.backends import Servers
from tests.certificates import Authority
from tests.cli.command import Ended, claimjobs
from tests.flavours import FAMILIES, Family

HOST = "127.0.0.1"
VERIFIED = {"postgres": "sslmode=verify-full&sslrootcert={ca}", "mysql": "ssl_ca={ca}", "mariadb": "ssl_ca={ca}"}
PLAIN = {"postgres": "sslmode=disable", "mysql": "ssl_disabled=true", "mariadb": "ssl_disabled=true"}
AUTHORITY = Authority()

Ask = Callable[..., Ended]
"""Runs `claimjobs status` with these options of the URL, and perhaps another host."""


@contextmanager
def demanding_tls(family: Family, servers: Servers, tls: Tls) -> Iterator[str]:
    """The URL of a server that refuses connections that are not encrypted.

    The wheel's Postgres is built without TLS: a PgBouncer before it encrypts. To the driver it is a server.
    """
    try:
        if family == "postgres":
            with pgbouncer(servers.get(family).server.url, "session", tls=tls) as pooler:
                yield pooler.url
        else:
            with programs.find(family).start(tls) as server:
                yield server.url
    except Unavailable as missing:
        pytest.skip(f"no {family} with TLS: {missing}")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture(scope="module")
def ask(family: Family, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    folder = tmp_path_factory.mktemp("tls")
    for name, authority in (("ca", AUTHORITY), ("other", Authority("another one"))):
        (folder / f"{name}.pem").write_text(authority.certificate)
    with demanding_tls(family, servers, AUTHORITY.for_host(HOST)) as url:

        def status(options: str, host: str = HOST, ca: str = "ca") -> Ended:
            bare = sa.make_url(url).set(host=host).difference_update_query(["ssl_check_hostname"])
            target = bare.render_as_string(hide_password=False)
            joint = "&" if "?" in target else "?"
            given = options.format(ca=folder / f"{ca}.pem")
            ended = claimjobs("status", "--table", "nothing", "--url", f"{target}{joint}{given}")
            assert str(sa.make_url(url).password) not in ended.said
            return ended

        yield status


def is_reached(ended: Ended) -> bool:
    """Whether the server has answered: it has no such table."""
    return ended.code == 4 and "'nothing'" in ended.err


def test_a_verified_connection_works(ask: Ask, family: Family) -> None:
    assert is_reached(ask(VERIFIED[family]))


@pytest.mark.parametrize(("host", "ca"), [("localhost", "ca"), (HOST, "other")], ids=["host", "authority"])
def test_a_certificate_of_another_host_or_authority_is_refused(ask: Ask, family: Family, host: str, ca: str) -> None:
    ended = ask(VERIFIED[family], host=host, ca=ca)
    assert (ended.code, ended.out) == (3, "")
    assert "no encrypted connection" in ended.err
    assert "check the TLS options of the URL" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_an_authority_that_is_no_file_is_refused(ask: Ask, family: Family) -> None:
    ended = ask(VERIFIED[family], ca="missing")
    assert (ended.code, ended.out) == (3, "")
    assert "missing.pem" in ended.err


def test_a_connection_without_tls_is_refused(ask: Ask, family: Family) -> None:
    ended = ask(PLAIN[family])
    assert (ended.code, ended.out) == (3, "")
    if family == "mariadb":  # the server says only that
        assert "Access denied" in ended.err
    else:
        assert "no encrypted connection" in ended.err


@pytest.mark.parametrize("option", ["ssl_verify_identity=true", "ssl_verify_cert=true", "ssl_disabled=false"])
def test_an_option_that_does_not_mean_what_it_says_is_refused(tmp_path: Path, option: str) -> None:
    """With the first two PyMySQL would not look at `ssl_ca`; by any value of the third TLS is off."""
    url = f"mysql://app:hidden1@nowhere.invalid/shop?ssl_ca={tmp_path}/ca.pem&{option}"
    ended = claimjobs("status", "--url", url)
    assert (ended.code, ended.out) == (3, "")
    assert f"the option {option.partition('=')[0]!r} does not mean what it says: leave it out" in ended.err
    assert "hidden1" not in ended.said


def test_the_page_shows_the_options_that_are_tested_here() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    for options in VERIFIED.values():
        assert f"?{options.format(ca='/etc/claimjobs/ca.pem')}'" in page
