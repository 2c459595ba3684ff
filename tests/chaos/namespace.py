"""A network namespace with one cable to this side, which can be pulled out. For root on Linux."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from types import TracebackType
from typing import Self


class NotPermitted(Exception):
    """This machine or this user cannot make network namespaces."""


class Namespace:
    """Made at once. Leave the block, and it is gone."""

    def __init__(self) -> None:
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise NotPermitted("network namespaces need root and the program `ip` (package iproute2)")
        tag = secrets.token_hex(3)
        self.name = f"cj-{tag}"
        self._here, self._there = f"cj{tag}h", f"cj{tag}t"
        third = secrets.randbelow(250) + 1
        self.outside, self.inside = f"10.213.{third}.1", f"10.213.{third}.2"
        self._make()

    @property
    def prefix(self) -> list[str]:
        """What a command begins with that is to live inside."""
        return ["ip", "netns", "exec", self.name]

    def _make(self) -> None:
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.name)
            _ip("address", "add", f"{self.outside}/24", "dev", self._here)
            _ip("link", "set", self._here, "up")
            _ip("-n", self.name, "address", "add", f"{self.inside}/24", "dev", self._there)
            _ip("-n", self.name, "link", "set", self._there, "up")
            _ip("-n", self.name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            self._remove()
            raise NotPermitted(f"no network namespace: {error.stderr.strip()}") from error

    def down(self) -> None:
        """Pull the cable out."""
        _ip("link", "set", self._here, "down")

    def up(self) -> None:
        """Put it back."""
        _ip("link", "set", self._here, "up")

    def _remove(self) -> None:
        # The cable goes first: a namespace lives on, with its end of it, as long as any socket in it does.
        subprocess.run(["ip", "link", "del", self._here], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
