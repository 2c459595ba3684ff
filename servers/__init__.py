"""Real MySQL, MariaDB and Postgres servers for tests, demonstrations and benchmarks.

A development tool: it is not part of the wheel. `start("mysql")` takes the first server that can be had:
an URL in the environment, a container, the server's own program.
"""

from servers.errors import Unavailable
from servers.server import Server
from servers.sources import Backend, choose

__all__ = ["Backend", "Server", "Unavailable", "start"]


def start(backend: Backend, *, durable: bool = True) -> Server:
    """A server that answers, for a `with` block; raises Unavailable with the next step when there is none.

    `durable=False`: a program of ours keeps its data in memory where there is room, and does not wait for the disk at
    a commit. What is committed outlives the death of the server's processes, and not that of the machine.
    """
    return choose(backend).start(durable=durable)
