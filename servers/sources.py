"""Where a server comes from: the order in which the sources are asked."""

from servers import containers, environment, programs
from servers.backends import BACKENDS, Backend
from servers.source import Source

__all__ = ["BACKENDS", "Backend", "Source", "choose"]


def choose(backend: Backend) -> Source:
    """The first source that has a server: the environment, Docker, the server's own program."""
    return environment.find(backend) or containers.find(backend) or programs.find(backend)
