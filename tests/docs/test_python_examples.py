"""The Python of the guide and of the page of commands, run as it stands, on each database."""

from __future__ import annotations

import json
from smtplib import SMTPException

import pytest
import sqlalchemy as sa

from claimjobs import make, read_map, tables_for
from tests.docs.markdown import MANUAL, README, TESTING, TUTORIAL, Block, blocks
from tests.docs.shop import SOME_MAIL, Shop

BLOCKS = [block for page in MANUAL if page not in (README, TESTING) for block in blocks(page, "python")]
PROGRAMS = [block for block in BLOCKS if not block.file and block.page != TUTORIAL]  # which has a test of its own
ADDRESSES = [row["address"] for row in SOME_MAIL]


def _with(words: str) -> Block:
    [block] = [block for block in PROGRAMS if words in block.text]
    return block


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_every_program_runs(shop: Shop, block: Block) -> None:
    shop.open()
    shop.run(block.text, str(block))


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_every_file_can_be_imported(any_shop: Shop) -> None:
    files = [block.file for block in BLOCKS if block.file and block.page != TUTORIAL]
    names = ("alerts", "api", "books", "handlers", "invoices", "models", "orm", "revision", "web")
    assert sorted(files) == [f"shop/{name}.py" for name in names]
    for file in files:
        any_shop.load(file.removeprefix("shop/").removesuffix(".py"))


def test_the_ten_lines_send_each_mail_once_and_leave_no_job(shop: Shop) -> None:
    shop.open()
    ten = _with("ends after queue.stop()")
    assert len([line for line in ten.text.splitlines() if line and "import" not in line]) <= 10
    shop.run(ten.text, str(ten))
    assert sorted(shop.sent) == sorted(ADDRESSES)
    assert shop.backend.rows("emails") == []


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_mail_that_cannot_be_sent_is_tried_again_later(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.open()
    mail = shop.load("mail")
    send = mail.send

    def refuse_one(address: str, body: str) -> None:
        send(address, body)
        if address == "a3@example.org":
            raise SMTPException("mailbox full")

    monkeypatch.setattr(mail, "send", refuse_one)
    ten = _with("ends after queue.stop()")
    shop.run(ten.text, str(ten))
    [row] = shop.backend.rows("emails")
    assert (row["address"], row["status"]) == ("a3@example.org", "unclaimed")
    assert row["attempts"] == shop.sent.count("a3@example.org") >= 1  # more than one where the program runs for seconds
    assert row["last_error"] == "SMTPException: mailbox full"


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_enqueue_example_enqueues(shop: Shop) -> None:
    shop.open()
    block = _with("what else belongs to this transaction")
    shop.run(block.text, str(block))
    assert len(shop.backend.rows("emails")) == 20 + 1 + 2_000


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_failure_example_leaves_what_its_comments_say(shop: Shop) -> None:
    shop.open()
    block = _with("retry=Retry(attempts=3")
    shop.run(block.text, str(block))
    failed = {row["last_error"]: row for row in shop.backend.rows("emails") if row["attempts"]}
    assert {error: row["status"] for error, row in failed.items()} == {
        "mailbox full": "unclaimed",
        "greylisted": "unclaimed",
        "no such address": "dead",
    }
    block = _with("queue.jobs.retry")
    assert shop.run(block.text, str(block))["revived"] == 1
    with shop.backend.bare_queue("emails", where=sa.text("last_error = 'no such address'")).claim() as batch:
        assert [job.attempts for job in batch.jobs] == [0]


def test_the_example_of_limits_takes_two_of_each_customer(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    block = _with("per_key=two_each")
    shop.run(block.text, str(block))
    assert sorted(json.loads(capsys.readouterr().out)) == [0, 0, 1, 1, 2, 2]
    assert len(shop.backend.rows("invoices")) == 4


@pytest.mark.parametrize("error", ["", "SMTPException"])
@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_example_that_blames_nobody_leaves_suspects(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    shop.open()
    mail = shop.load("mail")

    def refuse(address: str, body: str) -> None:
        raise SMTPException("mailbox full")

    if error:
        monkeypatch.setattr(mail, "send", refuse)
    block = _with("batch.blame")
    shop.run(block.text, str(block))
    rows = shop.backend.rows("emails")
    assert [row["suspect"] for row in rows] == ([10] * 10 if error else []) + [0] * 10
    assert [row["attempts"] for row in rows] == [0] * len(rows)


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_long_example_sends_part_after_part(shop: Shop) -> None:
    shop.open()
    shop.backend.run("UPDATE emails SET body = 'one\n\ntwo'")
    block = _with("batch.extend()")
    queue = shop.run(block.text, str(block))["queue"]
    assert shop.sent == [address for address in ADDRESSES[:3] for _ in range(2)]
    assert queue.report.done == 3


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_loop_that_ends_when_told_to_sends_everything(shop: Shop) -> None:
    shop.open()
    block = _with("queue.batches(idle=3_600)")
    shop.run(block.text, str(block))
    assert sorted(shop.sent) == sorted(ADDRESSES)


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_table_of_the_shops_own_is_worked_through(shop: Shop) -> None:
    shop.open()
    block = _with("Columns(status=")
    queue = shop.run(block.text, str(block))["queue"]
    assert queue.report.done == 3
    assert [row["state"] for row in shop.backend.rows("orders")] == [2, 2, 2]


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_file_says_the_same_as_the_example_in_python(any_shop: Shop) -> None:
    any_shop.open()
    block = _with("Columns(status=")
    columns = any_shop.run(block.text, str(block))["columns"]
    assert read_map("orders.toml") == {"table": "orders", "columns": columns, "order_by": ["-nr"], "on_done": "keep"}


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_the_rentals_are_returned_and_none_is_deleted(shop: Shop) -> None:
    shop.open()
    block = _with('"rental", where=is_open')
    queue = shop.run(block.text, str(block))["queue"]
    assert (queue.report.done, queue.report.still_due) == (3, 0)
    rentals = shop.backend.rows("rental")
    assert [(row["rental_id"], row["return_date"] is None) for row in rentals] == [(n, False) for n in (1, 2, 3)]


@pytest.mark.thorough("every example of the guide, each a program or a command")
def test_a_mapped_class_is_a_queue(shop: Shop) -> None:
    parcel = shop.load("orm").Parcel
    make(shop.backend.engine, tables_for(parcel))
    queue = shop.backend.queue(parcel)
    queue.enqueue({"weight": 3})
    with queue.claim() as batch:
        assert [job.weight for job in batch] == [3]
