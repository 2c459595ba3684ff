"""`claimjobs status`."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from claimjobs.cli import exits
from claimjobs.options import Liveness
from tests.backends import Backend
from tests.cli.command import claimjobs, mapped
from tests.conformance.owners import age, end_session, still
from tests.conformance.sleepers import Consumer


def test_json_is_one_object_with_the_documented_keys(database: Backend) -> None:
    queue = database.queue(on_done="keep")
    queue.enqueue([{"d": str(n), "e": ""} for n in range(6)])
    with queue.claim(3) as batch:
        batch.fail(batch[0], "no", retry=False)
        batch.done()
    batch = queue.claim(2)
    ended = claimjobs("status", "--json", "--url", database.url)
    found = json.loads(ended.out)
    assert (ended.code, ended.err, ended.out.count("\n")) == (exits.OK, "", 1)
    [owner] = found.pop("owners")
    assert found.pop("oldest_due_seconds") >= 0
    assert (found.pop("ownerless"), found.pop("strangers"), found.pop("unclaimable")) == (0, [], 0)
    counts = {"unclaimed": 1, "claimed": 2, "done": 2, "dead": 1}
    paused = {"paused_seconds": None, "pause_reason": None}
    assert found == {"table": "jobs", **counts, **paused, "other": [], "retrying": 0, "not_in_queue": 0, "where": None}
    assert 0 <= owner.pop("age_seconds") < 60
    assert 0 <= owner.pop("silence_seconds") < 10
    assert owner == {
        "id": queue.owner_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "lease_seconds": 10,
        "lock": "held",
        "dead": False,
        "asleep_seconds": None,
        "jobs": 2,
        "unclaimable": 0,
    }
    batch.settle()


def test_lines_where_there_is_no_terminal(anywhere: Backend) -> None:
    queue = anywhere.queue()
    queue.enqueue({"d": "a", "e": "b"})
    anywhere.run("UPDATE jobs SET run_at = now() - interval '2 minutes'")
    owner = queue.owner_id
    lines = claimjobs("status", "--url", anywhere.url).out.splitlines()
    assert lines[:4] == ["jobs: 1 unclaimed", "jobs: 0 claimed", "jobs: 0 done", "jobs: 0 dead"]
    assert lines[4].startswith("jobs: the oldest job has been due for 2 min")
    assert lines[5].startswith(f"jobs: owner {owner} {socket.gethostname()}:{os.getpid()} since ")
    assert lines[5].endswith(" ago, lease 10 s, lock held, holds 0")


def test_unclaimed_jobs_are_those_that_meet_the_predicate(database: Backend, tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text("where = \"d = '1'\"\n")
    database.queue().enqueue([{"d": str(n), "e": ""} for n in range(3)])
    given = ("status", "--map", str(file), "--url", database.url)
    ended = claimjobs(*given)
    assert ended.out.splitlines()[0] == "jobs: 1 unclaimed"
    assert "jobs: 2 unclaimed rows are not in the queue (where d = '1')" in ended.out.splitlines()
    found = json.loads(claimjobs(*given, "--json").out)
    assert (found["unclaimed"], found["not_in_queue"], found["where"]) == (1, 2, "d = '1'")
    assert claimjobs(*given, "--check", "--max-waiting", "1").code == exits.OK


def test_who_sleeps(database: Backend) -> None:
    with Consumer(database) as consumer:
        consumer.falls_asleep()
        [owner] = json.loads(claimjobs("status", "--json", "--url", database.url).out)["owners"]
        assert 0 <= owner["asleep_seconds"] < 60
        line = claimjobs("status", "--url", database.url).out.splitlines()[-1]
        assert ", lock held, asleep for " in line
        assert line.endswith(" s, holds 0")


def test_how_owners_live(database: Backend) -> None:
    """One whose lock tells, one whose lease alone does, one silent for too long, one whose session has ended."""
    age(database)  # waits for it, on a server that has just been started
    pooled, locked = Liveness(session_lock=False, lease=600), Liveness(lease=600)  # however slow the machine is
    lives = (locked, pooled, Liveness(), locked)
    queues = [still(database.queue(liveness=liveness)) for liveness in lives]
    well, leased, silent, cut = (queue.owner_id for queue in queues)
    age(database, silent)
    end_session(database, cut)
    told = claimjobs("status", "--url", database.url).out.splitlines()[5:]
    assert [line.split()[2] for line in told] == [str(owner) for owner in (well, leased, silent, cut)]
    ends = ["lease 600 s, lock held, holds 0", "lease 600 s, lease only, holds 0"]
    ends += ["lease 10 s, lock held, holds 0, dead", "lease 600 s, lock free, holds 0, dead"]
    assert [line.partition(" ago, ")[2] for line in told] == ends
    found = json.loads(claimjobs("status", "--json", "--url", database.url).out)["owners"]
    assert [(owner["lock"], owner["dead"]) for owner in found] == [
        ("held", False),
        ("none", False),
        ("held", True),
        ("free", True),
    ]
    for queue in queues[2:]:
        database.bare_queue().reclaim_owner(queue.owner_id)


def test_rows_in_no_state_that_is_named(anywhere: Backend, tmp_path: Path) -> None:
    """As where the value of a state is mistyped: the queue only seems to be empty."""
    anywhere.run("CREATE TABLE mails (id INT PRIMARY KEY, phase TEXT)")
    anywhere.run("INSERT INTO mails SELECT n, 'open' FROM generate_series(1, 1200) AS n")
    anywhere.run("INSERT INTO mails VALUES (1201, NULL), (1202, NULL)")
    described = mapped(tmp_path, "table = 'mails'\n[columns]\nstatus = 'phase'\n[states]\nunclaimed = 'opne'")
    mistyped = ("status", *described, "--hold", "transaction", "--url", anywhere.url)
    lines = claimjobs(*mistyped).out.splitlines()
    assert lines[0] == "mails: 0 unclaimed (opne)"
    assert lines[4:] == ["mails: 1200 other ('open')", "mails: 2 other (NULL)", "mails: no job is due"]
    found = json.loads(claimjobs(*mistyped, "--json").out)
    assert found["other"] == [{"value": "open", "rows": 1200}, {"value": None, "rows": 2}]


def test_a_column_that_is_no_status_has_too_many_values_to_show(anywhere: Backend, tmp_path: Path) -> None:
    anywhere.run("CREATE TABLE mails (id INT PRIMARY KEY, title TEXT)")
    anywhere.run("INSERT INTO mails SELECT n, n::text FROM generate_series(1, 100) AS n")
    described = mapped(tmp_path, "table = 'mails'\n[columns]\nstatus = 'title'\n[states]\nunclaimed = 'open'")
    words = (*described, "--hold", "transaction")
    lines = claimjobs("status", *words, "--url", anywhere.url).out.splitlines()
    assert lines[-2] == "mails: 90 other (90 more values)"
    assert len(lines) == 16


def test_jobs_of_other_programs_are_told_of_and_how_to_free_them(database: Backend) -> None:
    """As the article's consumers leave them, which count their own ids, when they die."""
    queue = database.queue()
    queue.enqueue([{"d": "", "e": ""}] * 4)
    database.run("UPDATE jobs SET status = 'claimed', owner_id = 7 WHERE id < 4")
    line = "3 claimed by owner 7, another program: if it has ended, `claimjobs reclaim --owner 7 --force` reclaims them"
    assert f"jobs: {line}\n" in claimjobs("status", env={"CLAIMJOBS_URL": database.url}).out
    found = json.loads(claimjobs("status", "--json", "--url", database.url).out)
    assert found["strangers"] == [{"owner_id": 7, "jobs": 3}]
    assert claimjobs("reclaim", "--owner", "7", "--force", "--url", database.url).out == "3\n"
    assert queue.stats().strangers == {}
    assert queue.stats().unclaimed == 4


def test_of_another_table(anywhere: Backend) -> None:
    anywhere.make("mails")
    ended = claimjobs("status", "--table", "mails", "--url", anywhere.url)
    assert "mails: no job is due" in ended.out


def test_without_tables_the_next_step_is_told(anywhere: Backend) -> None:
    ended = claimjobs("status", "--url", anywhere.url)
    assert (ended.code, ended.out) == (exits.TABLE, "")
    assert "claimjobs setup-tables" in ended.err


def test_a_check_of_a_healthy_queue_prints_ok(database: Backend) -> None:
    database.queue().enqueue({"d": "", "e": ""})
    limits = ("--max-age", "1h", "--max-dead", "0", "--max-waiting", "1", "--min-owners", "0")
    ended = claimjobs("status", "--check", *limits, "--url", database.url)
    assert (ended.code, ended.out, ended.err) == (exits.OK, "jobs: ok\n", "")


def test_a_check_names_each_limit_that_is_exceeded(database: Backend) -> None:
    queue = database.queue()
    queue.enqueue([{"d": "", "e": ""}] * 3)
    with queue.claim(1) as batch:
        batch.fail(batch[0], "no", retry=False)
    database.run("UPDATE jobs SET run_at = '2020-01-01'")
    limits = ("--max-age", "5m", "--max-dead", "0", "--max-waiting", "1", "--min-owners", "2")
    ended = claimjobs("status", "--check", *limits, "--url", database.url)
    age, *others = ended.out.rstrip().split("; ")
    assert (ended.code, ended.err, ended.out.count("\n")) == (exits.UNHEALTHY, "", 1)
    assert age.startswith("jobs: the oldest job has been due for ")
    assert age.endswith(" d (--max-age 5 min)") or " h (--max-age" in age
    assert others == [
        "1 dead job (--max-dead 0)",
        "2 unclaimed jobs (--max-waiting 1)",
        "1 living owner (--min-owners 2)",
    ]
    as_json = claimjobs("status", "--check", "--json", *limits, "--url", database.url)
    assert as_json.code == exits.UNHEALTHY
    assert json.loads(as_json.out)["exceeded"][1:] == others


def test_a_check_that_cannot_tell_an_age_is_not_ok(anywhere: Backend) -> None:
    anywhere.run("CREATE TABLE mails (id INT PRIMARY KEY, status TEXT)")
    anywhere.run("INSERT INTO mails VALUES (1, 'unclaimed')")
    words = ("--table", "mails", "--hold", "transaction", "--url", anywhere.url)
    ended = claimjobs("status", "--check", "--max-age", "5m", *words)
    assert ended.code == exits.UNHEALTHY
    assert "name it in [columns] of the --map file" in ended.out


def test_a_check_without_a_limit_and_a_limit_without_a_check_are_refused() -> None:
    for words in (["--check"], ["--max-dead", "0"], ["--check", "--min-owners", "1", "--hold", "transaction"]):
        assert claimjobs("status", *words).code == exits.USAGE
