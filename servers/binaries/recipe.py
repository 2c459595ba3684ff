from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Protocol

from servers.process import Command


@dataclass(frozen=True)
class Tls:
    """The server's certificate and its key, as PEM. With them a server refuses connections that are not encrypted."""

    certificate: str
    key: str

    def files(self) -> dict[str, str]:
        return {"server.pem": self.certificate, "server.key": self.key}


@dataclass(frozen=True)
class Ticket:
    """Where one server lives."""

    folder: Path
    port: int
    password: str
    tls: Tls | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"


class Recipe(Protocol):
    """What a module of this package offers."""

    STOP: Signals  # ends the server at once and leaves nothing; its data are thrown away
    NOT_DURABLE: Sequence[str]  # options with which a commit is safe from the server's death, but waits for no disk

    def origin(self) -> str:
        """Where the program that `fetch` brought came from."""

    def describe(self) -> str:
        """One line: origin and version of the program, or what would be fetched."""

    def fetch(self) -> object:
        """Bring the program to this machine, once."""

    def files(self, place: Ticket) -> dict[str, str]:
        """Name and content of the files that the commands read."""

    def initialise(self, place: Ticket) -> list[Command]:
        """The commands that make the data folder, with the database and the account in it."""

    def serve(self, place: Ticket) -> Command:
        """The command that is the server."""
