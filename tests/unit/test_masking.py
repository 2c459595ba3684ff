"""Secrets of URLs, wherever they stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from claimjobs.database.connect import engine_of, shown
from claimjobs.database.masking import masked

HEAD, TAIL = "geheim", "mauer"
"""What a secret begins with and ends in: neither may be seen."""
SECRETS = st.text(st.characters(codec="utf-8"), max_size=12).map(lambda middle: HEAD + middle + TAIL)
WRITINGS: list[Callable[[str], str]] = [str, lambda text: quote(text, safe=""), quote_plus]
URLS = [
    "mysql://app:{}@db/shop",
    "mysql://app:{}@db:3306/shop?charset=utf8mb4",
    "mysql://app:{}@db/shop?note=a@b",
    "postgresql+psycopg://:{}@/shop",
    "mysql:/app:{}@db/shop",
    "app:{}@db/shop",
    "MYSQL://app:{}@[::1]:3306/shop",
    "mysql://db/shop?password={}",
    "mysql://db/shop?user=app&passwd={}",
    "mysql://db/shop?user=app&PassWord={}&charset=utf8mb4",
    "postgresql://db/shop?sslpassword={}&sslmode=require",
    "postgresql://db/shop?sslkey={}",
    "postgresql://db/shop?oauth_client_secret={}",
    "postgresql://db/shop?pass%77ord={}",
    "mysql://db/shop?ssl_key_password={}",
    "nonsense://app:{}@",
    "://app:{}@db",
]
TEXTS = ["{}", "cannot reach {} now", "('{}',)", "could not connect\nto {}"]


@example(secret=HEAD + "@" + TAIL)
@example(secret=HEAD + ":" + TAIL)
@example(secret=HEAD + "%40+ " + TAIL)
@example(secret=HEAD + "'\"\\" + TAIL)
@settings(max_examples=20, deadline=None)
@given(secret=SECRETS)
@pytest.mark.parametrize("url", URLS)
def test_a_secret_of_a_known_url_is_never_seen(url: str, secret: str) -> None:
    for write in WRITINGS:
        if write is str and "&" in secret and "?" in url:
            continue  # it would end there
        given_url = url.format(write(secret))
        for text in (given_url, secret, repr(secret), json.dumps(secret), quote(secret), quote_plus(secret)):
            for around in TEXTS:
                seen = masked(around.replace("{}", text), [given_url])
                assert HEAD not in seen
                assert TAIL not in seen


def test_a_secret_that_is_not_utf8_is_masked_and_no_error() -> None:
    url = f"mysql://app:{HEAD}\udcff{TAIL}@db/shop"
    assert masked(f"cannot reach {HEAD}\udcff{TAIL}", [url]) == "cannot reach ***"


@settings(max_examples=20, deadline=None)
@given(secret=SECRETS)
@pytest.mark.parametrize("url", URLS)
def test_a_url_that_nobody_gave_is_masked_as_well(url: str, secret: str) -> None:
    seen = masked(f"connecting to {url.format(quote(secret, safe=''))}: refused")
    assert (HEAD in seen, TAIL in seen) == ((url.startswith("app:"),) * 2)
    assert seen.startswith("connecting to ")


def test_what_is_no_secret_stays() -> None:
    url = "mysql://app:a@db:3306/shop?charset=utf8mb4"
    assert masked(f"{url}: a table of app has no column 'a'", [url]) == (
        "mysql://app:***@db:3306/shop?charset=utf8mb4: *** table of app has no column '***'"
    )
    assert masked("nothing at postgresql://db:5432/shop, check host and port") == (
        "nothing at postgresql://db:5432/shop, check host and port"
    )


@pytest.mark.parametrize("url", ["mysql://app:geheim@db/shop?{}=geheim2", "postgresql://app:geheim@db/shop?{}=geheim2"])
@pytest.mark.parametrize("option", ["password", "passwd", "sslpassword"])
def test_an_engine_shows_none(url: str, option: str) -> None:
    engine = engine_of(url.format(option))
    assert "geheim" not in f"{engine!r} {engine.url!r} {engine.url} {shown(engine.url)}"
    assert "geheim" not in shown(sa.make_url(url.format(option)))
