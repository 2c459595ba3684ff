"""The page of a queue: whole HTML that carries nothing of what a job says into a browser as markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from claimjobs.admin.overview import FailedJob, History
from claimjobs.metrics.backlog_reader import Reading
from claimjobs.metrics.page import STYLE, PageReader, queue_pages
from tests.unit.test_watch_screen import history_of, overview

NASTY = "</td><script>alert(1)</script>\x1b[2J\nand more"


class Given(PageReader):
    """A reader that has read this."""

    def __init__(self, *counts: int, error: str | None = None, **changed: Any) -> None:
        self.table = "orders<b>"
        seen, self.history = history_of(*counts) if counts else (overview(0), History())
        self.seen = replace(seen, **changed)
        self._reading = Reading(self.seen.backlog, error)

    def latest(self) -> Reading:
        return self._reading


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def answered(reader: PageReader, path: str = "/") -> tuple[str, dict[str, str]]:
    headers: dict[str, str] = {}

    def start(status: str, given: list[tuple[str, str]], *_: Any) -> Any:
        assert status == "200 OK"
        headers.update(given)

    [body] = queue_pages(reader)[path]({}, start)
    return body.decode(), headers


def test_what_jobs_and_people_say_is_text() -> None:
    dead = (FailedJob(NASTY, None, NASTY * 100), FailedJob(("eu", 7), 3, "no"))
    text, headers = answered(Given(30, 20, dead=dead, paused=60.0, pause_reason=NASTY))
    found = Tags(text)
    assert found.open == []
    assert not {"script", "b", "iframe", "img"} & set(found.tags)
    assert "\x1b" not in text
    assert "orders&lt;b&gt;" in text
    assert max(map(len, text.split("<td>"))) < 2_000
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self'")
    assert "'unsafe-inline'" not in headers["Content-Security-Policy"]


def test_it_has_states_owners_dead_jobs_and_a_plot_of_each_state() -> None:
    text, _ = answered(Given(*range(9_000, 8_000, -100)))
    for words in ("unclaimed", "8,100", "-50.0", "host-1:101", "mailbox full", "empty in 2 min 42 s"):
        assert words in text, words
    assert text.count("<polyline") == 3


def test_jobs_that_will_be_tried_again_have_the_time_of_that() -> None:
    text, _ = answered(Given(30, 20, retrying=(FailedJob(NASTY, 4, NASTY, 62.0),)))
    assert Tags(text).open == []
    assert "<h2>Failed jobs</h2>" in text
    assert '<td class="number">4</td><td>in 1 min 2 s</td><td>&lt;/td&gt;&lt;script' in text
    assert "No consumer" not in text


def test_it_says_that_no_consumer_is_running() -> None:
    given = Given(30, 20)
    assert given.seen is not None
    given.seen = replace(given.seen, backlog=replace(given.seen.backlog, owners={"awake": 0, "asleep": 0, "dead": 1}))
    text, _ = answered(given)
    assert ("No consumer is running" in text, "empty in" in text) == (True, False)


def test_a_table_that_cannot_be_read_is_told_beside_what_is_known() -> None:
    text, _ = answered(Given(30, error="no <server>"))
    assert "The table cannot be read: no &lt;server&gt;" in text
    assert "unclaimed" in text


def test_the_style_is_a_page_of_its_own() -> None:
    text, headers = answered(Given(1), "/style.css")
    assert (text, headers["Content-Type"]) == (STYLE, "text/css; charset=utf-8")
