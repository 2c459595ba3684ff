from typing import Protocol

from servers.server import Server


class Source(Protocol):
    """One way to have a server."""

    def describe(self) -> str:
        """One line: what `start` would use and, where known, its version."""

    def fetch(self) -> str:
        """Bring what `start` needs to this machine; returns `describe()` afterwards."""

    def start(self, *, durable: bool = True) -> Server:
        """A server that answers; whether it waits for the disk at a commit, where that is for us to say."""
