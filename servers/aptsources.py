"""Read the machine's own apt sources: the mirror that its owner chose is the one that we use."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

APT = Path("/etc/apt")


@dataclass(frozen=True)
class Repository:
    uri: str
    suite: str
    components: tuple[str, ...]


def machine_repositories(apt: Path = APT) -> list[Repository]:
    """Every binary repository that apt on this machine is set up with, in apt's order."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    return [found for file in files if file.is_file() for found in _read(file)]


def _read(file: Path) -> Iterator[Repository]:
    if file.suffix == ".sources":
        return parse_deb822(file.read_text())
    return parse_one_line(file.read_text()) if file.suffix == ".list" else iter(())


def parse_one_line(content: str) -> Iterator[Repository]:
    """`deb [options] uri suite component...`, one repository a line."""
    for line in content.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] != ["deb"]:
            continue
        uri, suite, *components = _without_options(words[1:]) or ["", ""]
        yield Repository(uri, suite, tuple(components))


def _without_options(words: list[str]) -> list[str]:
    if not words or not words[0].startswith("["):
        return words
    closing = next((i for i, word in enumerate(words) if word.endswith("]")), len(words))
    return words[closing + 1 :]


def parse_deb822(content: str) -> Iterator[Repository]:
    """Stanzas of `Field: value`; a field may go on in indented lines."""
    for stanza in _stanzas(content):
        if "deb" not in stanza.get("types", []) or stanza.get("enabled", ["yes"]) == ["no"]:
            continue
        for uri in stanza.get("uris", []):
            for suite in stanza.get("suites", []):
                yield Repository(uri, suite, tuple(stanza.get("components", [])))


def _stanzas(content: str) -> Iterator[dict[str, list[str]]]:
    stanza: dict[str, list[str]] = {}
    field: list[str] = []
    for line in [*(one for one in content.splitlines() if not one.startswith("#")), ""]:
        if not line.strip():
            if stanza:
                yield stanza
            stanza = {}
        elif line[0].isspace():
            field.extend(line.split())
        else:
            name, _, value = line.partition(":")
            field = stanza[name.strip().lower()] = value.split()


def debian_mirror(repositories: list[Repository], codename: str) -> str | None:
    """The mirror with all of Debian's suites; a vendor's repository has no `-updates` beside its suite."""
    suites: dict[str, set[str]] = {}
    for found in repositories:
        if "main" in found.components:
            suites.setdefault(found.uri, set()).add(found.suite)
    complete = {codename, "stable", "testing", "unstable", "sid"}
    mirrors = [uri for uri, names in suites.items() if names & complete]
    return min(mirrors, key=lambda uri: not _has_updates(suites[uri]), default=None)


def _has_updates(suites: set[str]) -> bool:
    return any(suite.endswith("-updates") for suite in suites)
