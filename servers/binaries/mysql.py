"""MySQL from mysqld: the installed one, else the distribution's package, else that of Debian unstable."""

import re
from collections.abc import Sequence
from signal import SIGKILL

from servers.backends import NAME
from servers.binaries import packaged
from servers.binaries.recipe import Ticket
from servers.process import Command

STOP = SIGKILL  # the data are thrown away, and mysqld leaves nothing else
NOT_DURABLE: Sequence[str] = packaged.NOT_DURABLE

_MYSQLD = packaged.Server(
    name="mysql",
    program="mysqld",
    package=r"mysql-server-core(-[89]\.\d+)?",
    is_right=re.compile(r"Ver ([89]|\d{2,})\.(?!.*MariaDB)"),
)
origin = _MYSQLD.origin
describe = _MYSQLD.describe
fetch = _MYSQLD.fetch


def files(place: Ticket) -> dict[str, str]:
    return {"account.sql": packaged.account_sql(place)}


def initialise(place: Ticket) -> list[Command]:
    return [Command([*_base(place), "--initialize-insecure", f"--init-file={place.folder}/account.sql"])]


def serve(place: Ticket) -> Command:
    """Durable, as the defaults are; written down so that no other default can weaken it."""
    return Command(
        [
            *_base(place),
            *packaged.listening(place),
            "--mysqlx=OFF",
            "--sync-binlog=1",
            f"--pid-file={place.folder}/{NAME}.pid",
        ]
    )


def _base(place: Ticket) -> list[str]:
    program = fetch()
    return [
        *program.command(),
        *packaged.base(program, place),
        "--secure-file-priv=",
        "--character-set-server=utf8mb4",
    ]
