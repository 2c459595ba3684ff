"""MariaDB from mariadbd: the one that is installed, else the distribution's server package."""

import re
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL

from servers.backends import NAME
from servers.binaries import packaged
from servers.binaries.recipe import Ticket
from servers.process import Command

STOP = SIGKILL  # the data are thrown away, and mariadbd leaves nothing else
NOT_DURABLE: Sequence[str] = packaged.NOT_DURABLE

_MARIADBD = packaged.Server(
    name="mariadb",
    program="mariadbd",
    package=r"mariadb-server-core(-\d+\.\d+)?",
    is_right=re.compile("MariaDB"),
)
origin = _MARIADBD.origin
describe = _MARIADBD.describe
fetch = _MARIADBD.fetch

# What mariadb-install-db feeds to the server, in its order; without the help texts.
SYSTEM_TABLES = (
    "mysql_system_tables.sql",
    "mysql_performance_tables.sql",
    "mysql_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "mysql_sys_schema.sql",
)


def files(place: Ticket) -> dict[str, str]:
    share = packaged.share(fetch())
    scripts = [(share / name).read_text() for name in SYSTEM_TABLES if (share / name).exists()]
    start = "CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
    return {"bootstrap.sql": start + "\n".join(scripts), "account.sql": packaged.account_sql(place)}


def initialise(place: Ticket) -> list[Command]:
    bootstrap = [*_base(place), "--bootstrap", "--max-allowed-packet=8M", "--net-buffer-length=16K"]
    return [
        Command(["mkdir", "--mode=700", str(place.data)]),
        Command(bootstrap, stdin=Path(place.folder, "bootstrap.sql")),
    ]


def serve(place: Ticket) -> Command:
    """--bootstrap cannot make accounts: the init file does, at every start."""
    return Command(
        [
            *_base(place),
            *packaged.listening(place),
            f"--init-file={place.folder}/account.sql",
            f"--pid-file={place.folder}/{NAME}.pid",
        ]
    )


def _base(place: Ticket) -> list[str]:
    program = fetch()
    return [*program.command(), *packaged.base(program, place), "--character-set-server=utf8mb4"]
