"""What a person reads."""

from __future__ import annotations

import json

import click
import pytest

from claimjobs.cli.console import LOG_FORMAT, URLS, number, say
from claimjobs.database.masking import masked
from claimjobs.instants import age


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (3, "3 s"),
        (59.6, "1 min"),
        (123, "2 min 3 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (7_260, "2 h 1 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_an_age_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_numbers_are_grouped() -> None:
    assert (number(1, "row"), number(2000, "row"), number(0, "job")) == ("1 row", "2,000 rows", "0 jobs")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql://app:s3cret@host/shop", "no connection to mysql://app:s3cret@host/shop"),
        ("mysql://app:s%403cret@host/shop", "connect(password='s@3cret')"),
        ("mysql://app:s+3cret@host/shop", "connect(password='s 3cret')"),
        ("postgresql://app:s@3cret@host/shop", "bad URL postgresql://app:s@3cret@host/shop"),
        ("", "some other postgresql+psycopg://app:s3cret@elsewhere:5432/shop"),
    ],
)
def test_no_password_is_left(url: str, text: str) -> None:
    assert "3cret" not in masked(text, [url])


def test_a_text_without_a_password_stays() -> None:
    text = "table 'jobs' is not in postgresql://app@host/shop: see https://example.org/a"
    assert masked(text, ["postgresql://app@host/shop"]) == text


def test_a_message_is_a_record_where_the_log_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    with click.Context(click.Command("x")) as context:
        context.meta.update({LOG_FORMAT: "json", URLS: ["mysql://app:s3cret@host/shop"]})
        say("using s3cret")
    found = json.loads(capsys.readouterr().err)
    assert (found["event"], found["level"], found["message"]) == ("command_says", "INFO", "using ***")
