"""The server of pages for monitoring: what it answers, and what a client cannot do to it."""

from __future__ import annotations

import logging
import socket
from urllib.parse import urlsplit
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from claimjobs.errors import ClaimjobsError
from claimjobs.metrics.http_server import answer, serving
from tests.process.scrape import page


def good(_environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
    """A page."""
    return answer(start, "well\n")


def broken(_environ: WSGIEnvironment, _start: StartResponse) -> list[bytes]:
    """A page that raises."""
    raise RuntimeError("no page today")


PAGES = {"/good": good, "/broken": broken}


def port_of(url: str) -> int:
    """The port of the address at which pages are served."""
    return urlsplit(url).port or 0


@pytest.mark.skipif(not socket.has_ipv6, reason="this system has no IPv6")
def test_the_address_of_ipv6_is_one_that_a_client_can_read() -> None:
    with serving("::1", 0, PAGES) as url:
        assert page(f"{url}/good") == (200, "well\n")


def test_pages_are_found_by_their_path_and_others_named() -> None:
    with serving("127.0.0.1", 0, PAGES) as url:
        assert page(f"{url}/good?a=b") == (200, "well\n")
        assert page(f"{url}/") == (404, "there is no such page: /broken, /good\n")


def test_a_page_that_raises_and_a_client_that_talks_nonsense_disturb_nobody(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "claimjobs.http_server")
    with serving("127.0.0.1", 0, PAGES) as url:
        assert page(f"{url}/broken")[0] == 500
        with socket.create_connection(("127.0.0.1", port_of(url))) as client:
            client.sendall(b"\x16\x03\x01 what\r\n\r\n")
            assert client.recv(100)
        assert page(f"{url}/good")[0] == 200
    assert capfd.readouterr().err == ""
    assert "no page today" in caplog.text


def test_the_name_of_the_machine_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up waits for a name server, which a container may not reach."""
    asked: list[object] = []
    monkeypatch.setattr(socket, "getfqdn", asked.append)
    with serving("127.0.0.1", 0, PAGES) as url:
        assert page(f"{url}/good")[0] == 200
        port = port_of(url)
        with pytest.raises(ClaimjobsError, match=f"port {port} of 127.0.0.1 cannot be listened on"):
            serving("127.0.0.1", port, PAGES).__enter__()
    assert not asked
