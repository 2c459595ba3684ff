"""Accounts with the rights that `setup-tables --grants` prints, and the statements that granted them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from tests.backends import Backend
from tests.cli.command import claimjobs

KINDS = ("producer", "consumer", "operator")
_GRANT = re.compile(r"GRANT (.*) ON (.*) TO (.*);")
_COMMAS = re.compile(r", (?![^(]*\))")


@dataclass(frozen=True)
class Accounts:
    """One account of each kind, each with rights of its own."""

    backend: Backend
    names: dict[str, str]
    printed: str

    def url(self, kind: str) -> str:
        """The URL of the test's database for this account."""
        url = sa.make_url(self.backend.url).set(username=self.names[kind], password="secret")
        return url.render_as_string(hide_password=False)

    @contextmanager
    def engine(self, kind: str) -> Iterator[sa.Engine]:
        """An engine of this account."""
        engine = sa.create_engine(self.url(kind), poolclass=sa.NullPool)
        yield engine
        engine.dispose()

    def lines(self, kind: str, *, optional: bool = False) -> list[str]:
        """The statements for this account. `optional`: those in comments."""
        lines = [line for line in self.printed.splitlines() if line.endswith(";") and self.names[kind] in line]
        start = "-- GRANT" if optional else "GRANT"
        return [line.removeprefix("-- ") for line in lines if line.startswith(start)]

    def rights(self, kind: str) -> list[str]:
        """Each right of this account alone, one for each column, as written between GRANT and TO."""
        found = []
        for line in self.lines(kind):
            rights, on, _ = _GRANT.fullmatch(line).groups()  # type: ignore[union-attr]
            for right in _COMMAS.split(rights):
                verb, _, columns = right.partition(" (")
                parts = [f" ({column})" for column in columns.rstrip(")").split(", ")] if columns else [""]
                found += [f"{verb}{part} ON {on}" for part in parts]
        return found

    def spare(self, kind: str, work: Callable[[Accounts], None]) -> list[str]:
        """The rights of this account without which its work does not fail. It works with all of them."""
        work(self)
        found = [right for right in self.rights(kind) if not self._is_needed(right, kind, work)]
        work(self)
        return found

    def _is_needed(self, right: str, kind: str, work: Callable[[Accounts], None]) -> bool:
        quoted = _GRANT.fullmatch(self.lines(kind)[0])[3]  # type: ignore[index]
        self.backend.run(f"REVOKE {right} FROM {quoted}")
        try:
            work(self)
        except Exception:
            return True
        finally:
            self.backend.run(f"GRANT {right} TO {quoted}")
        return False


@contextmanager
def accounts(backend: Backend, *options: str) -> Iterator[Accounts]:
    """An account of each kind for the tables of these options, which exist."""
    postgres = backend.family == "postgres"
    if postgres:  # in a new database everybody has it
        backend.run("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    names = {kind: f"cj_{kind[0]}_{secrets.token_hex(4)}" for kind in KINDS}
    given = [word for kind, name in names.items() for word in ("--account", f"{kind}={name}")]
    ended = claimjobs("setup-tables", "--grants", *given, *options, "--url", backend.url)
    assert ended.code == 0, ended.err
    made = Accounts(backend, names, ended.out)
    try:
        for name in names.values():
            kind = "ROLE {} LOGIN PASSWORD 'secret'" if postgres else "USER {} IDENTIFIED BY 'secret'"
            backend.run(f"CREATE {kind.format(name)}")
        for line in (line for kind in KINDS for line in made.lines(kind)):
            backend.run(line)
        yield made
    finally:
        for name in names.values():
            if postgres:
                backend.run(f"DROP OWNED BY {name}")
            backend.run(f"DROP {'ROLE' if postgres else 'USER'} IF EXISTS {name}")
