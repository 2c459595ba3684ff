"""A handler whose module gives the process other sockets, which do not block: as gevent and its like do."""

from __future__ import annotations

import logging.config
import socket
from typing import Any

from tests.process import work

made_by_python = socket.socketpair


class Patched(socket.socket):
    """A socket that stays as it is."""

    def setblocking(self, flag: bool) -> None:
        """Do nothing: who waits is somebody else's."""


def _socketpair(*of: Any) -> tuple[Patched, Patched]:
    pair = made_by_python(*of)
    for each in pair:
        each.setblocking(False)
    first, second = (Patched(each.family, each.type, each.proto, each.detach()) for each in pair)
    return first, second


socket.socketpair = _socketpair  # type: ignore[assignment]
logging.config.dictConfig({"version": 1})  # it disables all loggers that there are

note_job = work.note_job
