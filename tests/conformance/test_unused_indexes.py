"""An index that no statement can use is no index.

MySQL: an invisible one. MariaDB: an ignored one. Postgres: one that is not valid.
"""

from __future__ import annotations

import pytest

from claimjobs import Columns
from claimjobs.errors import KeyUnfit
from tests.backends import Backend
from tests.conformance.jobs import jobs

pytestmark = pytest.mark.filterwarnings("ignore:Unknown schema content")  # SQLAlchemy does not know IGNORED

HIDE = {
    "mysql": "ALTER TABLE jobs ALTER INDEX {} INVISIBLE",
    "mariadb": "ALTER TABLE jobs ALTER INDEX {} IGNORED",
    "postgres": "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{}'::regclass",
}


def hide(backend: Backend, index: str) -> None:
    backend.run(HIDE[backend.family].format(index).replace("::", "\\:\\:"))


def test_a_key_whose_index_is_unused_is_refused(backend: Backend) -> None:
    backend.make()
    backend.run("DROP INDEX jobs_d" + ("" if backend.family == "postgres" else " ON jobs"))
    backend.run("CREATE UNIQUE INDEX by_d ON jobs (d)")
    queue = backend.bare_queue(columns=Columns(key="d"), on_done="delete")
    queue.enqueue(jobs(1))
    with queue.claim(1) as batch:
        batch.release()
    hide(backend, "by_d")
    with pytest.raises(KeyUnfit, match="no index of table 'jobs' that statements can use begins with its key, d: "):
        backend.bare_queue(columns=Columns(key="d"), on_done="delete").claim(1)


def test_an_unused_claim_index_is_missing_and_the_statement_that_helps_is_named(backend: Backend) -> None:
    queue = backend.queue()
    hide(backend, "jobs_claim")
    [found] = [finding for finding in queue.explain().findings if finding.check == "index"]
    assert found.verdict == "warning"
    for statement in "".join(found.fix).split(";"):
        if statement.strip():
            backend.run(statement)
    assert [finding.verdict for finding in queue.explain().findings if finding.check == "index"] == ["ok"]


@pytest.mark.requires("table collation")  # the families whose statements name an index
@pytest.mark.parametrize("gone", ["hidden", "dropped"])
def test_the_loss_of_the_index_under_a_running_queue_is_told_and_ends_when_it_is_back(
    backend: Backend, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend.make()
    backend.run("CREATE UNIQUE INDEX by_d ON jobs (d)")
    backend.run("DROP INDEX jobs_d ON jobs")
    queue = backend.bare_queue(columns=Columns(key="d"), on_done="delete")
    queue.enqueue(jobs(4))
    batch = queue.claim(2)
    if gone == "hidden":
        hide(backend, "by_d")
    else:
        backend.run("DROP INDEX by_d ON jobs")
    batch.done()
    for use in (batch.settle, lambda: queue.claim(1)):
        with pytest.raises(KeyUnfit, match=r"dropped, renamed or hidden \(.*by_d.*: check the table"):
            use()
    assert not [message for message in caplog.messages if "cannot be claimed" in message]
    if gone == "hidden":
        backend.run("DROP INDEX by_d ON jobs")
    backend.run("CREATE UNIQUE INDEX by_d ON jobs (d)")
    with queue.claim(4) as others:
        others.done()
    queue.close()
