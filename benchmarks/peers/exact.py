"""How many jobs of one group pg-boss has active at once, where five are allowed: `python -m benchmarks.peers.exact`.

Four workers empty a queue of 100 groups, in batches with which several of them want jobs of the same group. Meanwhile
the active jobs of each group are counted, each time in one statement, which sees one moment.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import sqlalchemy as sa

import servers
from benchmarks.peers import race
from benchmarks.peers.catalogue import PER_KEY
from benchmarks.peers.driver import Order
from benchmarks.peers.environments import environment
from claimjobs.database.connect import engine_of

JOBS, BATCH, WORKERS, LIMIT = 20_000, 400, 4, 5
MOST: Final = sa.text(
    "select coalesce(max(active), 0), (select count(*) from pgboss.job where state < 'completed') from"
    " (select count(*) as active from pgboss.job where state = 'active' group by group_id) as groups"
)


def main() -> None:
    """Print what was seen."""
    peer, seen = PER_KEY[0], list[int]()
    there = environment(peer)
    with servers.start("postgres") as server, tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        race.write_rows(rows, JOBS)
        order = Order(server.url, str(rows), JOBS, BATCH, WORKERS, 0)
        subprocess.run(there.command(peer, "fill", json.dumps(asdict(order))), env=there.variables(), check=True)
        commands = [there.command(peer, "work", json.dumps(asdict(replace(order, number=n)))) for n in range(WORKERS)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        workers = [subprocess.Popen(command, env=there.variables(), **pipes) for command in commands]  # type: ignore[call-overload]
        try:
            for worker in workers:
                worker.stdout.readline()
            for worker in workers:
                worker.stdin.write(b"start\n")
                worker.stdin.flush()
            engine = engine_of(server.url)
            with engine.connect() as connection:
                left = 1
                while left:
                    most, left = connection.execute(MOST).one()
                    connection.rollback()
                    seen.append(most)
            engine.dispose()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    above = sum(most > LIMIT for most in seen)
    print(f"{peer.version}, at most {LIMIT} of a group: of {len(seen)} looks {above} saw more, one of them {max(seen)}")


if __name__ == "__main__":
    main()
