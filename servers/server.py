"""The server that a test or a command holds in its hands."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sqlalchemy.exc import SQLAlchemyError

from servers.backends import Backend, version
from servers.errors import Unavailable

POLL_SECONDS = 0.05


class Server:
    """A database server that answers at `url`. Leave the `with` block, or call `close()`, to give it back."""

    def __init__(self, backend: Backend, url: str, how: str) -> None:
        self.backend = backend
        self.url = url
        self.network_url = url
        """For programs on other hosts, if `url` is for this machine only."""
        self.how = how
        self.version = ""
        self.pid: int | None = None
        """The process that all others of the server descend from, where it is one of this machine's that we know."""

    @property
    def answers(self) -> bool:
        """Whether it answers now."""
        return self._ask_version() is None

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as a crash would."""
        raise Unavailable(self._not_ours("kill"))

    def restart(self) -> None:
        """Start the server again, on the same port and the same data."""
        raise Unavailable(self._not_ours("restart"))

    def close(self) -> None:
        """Stop the server, if it is ours, and remove its data."""

    def wait(self, seconds: float, watch: Callable[[], None] = lambda: None) -> Self:
        """Return when the server answers; `watch` may raise earlier when it never will."""
        deadline = time.monotonic() + seconds
        while (failure := self._ask_version()) and time.monotonic() < deadline:
            watch()
            time.sleep(POLL_SECONDS)
        if failure:
            raise Unavailable(f"{self.backend} ({self.how}) did not answer within {seconds:g} s: {failure}")
        return self

    def _ask_version(self) -> str | None:
        try:
            self.version = version(self.backend, self.url)
        except SQLAlchemyError as error:
            return str(error.__cause__ or error)
        return None

    def _not_ours(self, verb: str) -> str:
        return (
            f"cannot {verb} this {self.backend} ({self.how}): it is not a process of ours. "
            f"Unset the CLAIMJOBS_TEST_* variables and stop Docker to run the server's own program"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
