from pathlib import Path

from servers.aptsources import (
    Repository,
    debian_mirror,
    machine_repositories,
    parse_deb822,
    parse_one_line,
)

MIRROR = "http://mirror.example/debian"
VENDOR = "https://vendor.example/apt"


def test_one_line_sources_with_options_and_comments() -> None:
    found = parse_one_line(
        f"""
        # deb http://gone.example/debian bookworm main
        deb {MIRROR} bookworm main contrib # a comment
        deb [ arch=amd64 signed-by=/usr/share/keyrings/x.gpg ] {VENDOR} stable main
        deb [trusted=yes] {VENDOR} ./
        deb-src {MIRROR} bookworm main
        """
    )
    assert list(found) == [
        Repository(MIRROR, "bookworm", ("main", "contrib")),
        Repository(VENDOR, "stable", ("main",)),
        Repository(VENDOR, "./", ()),
    ]


def test_deb822_sources_with_every_suite_of_every_stanza() -> None:
    found = parse_deb822(
        f"""# made by the installer
Types: deb deb-src
URIs: {MIRROR}
# the suites
Suites: bookworm
 bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: {VENDOR}
Suites: stable
Components: main

Types: deb-src
URIs: {VENDOR}
Suites: stable
Components: main
"""
    )
    assert list(found) == [
        Repository(MIRROR, "bookworm", ("main",)),
        Repository(MIRROR, "bookworm-updates", ("main",)),
    ]


def test_both_styles_of_a_machine_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(f"deb {MIRROR} sid main\n")
    (tmp_path / "sources.list.d" / "a.sources").write_text(f"Types: deb\nURIs: {VENDOR}\nSuites: x\nComponents: y\n")
    (tmp_path / "sources.list.d" / "b.list.disabled").write_text("deb http://gone.example x y\n")
    assert machine_repositories(tmp_path) == [
        Repository(MIRROR, "sid", ("main",)),
        Repository(VENDOR, "x", ("y",)),
    ]


def test_the_mirror_is_debians_own_and_no_vendors() -> None:
    repositories = [
        Repository(VENDOR, "bookworm", ("main",)),
        Repository("http://security.example", "bookworm-security", ("main",)),
        Repository(MIRROR, "bookworm", ("main",)),
        Repository(MIRROR, "bookworm-updates", ("main",)),
    ]
    assert debian_mirror(repositories, "bookworm") == MIRROR


def test_no_mirror_without_a_suite_of_debian() -> None:
    assert debian_mirror([Repository(VENDOR, "nodistro", ("main",))], "bookworm") is None
