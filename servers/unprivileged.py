"""Database servers refuse to run as root: for root, an account without rights runs them."""

import os
import pwd
from pathlib import Path

ACCOUNT = "nobody"


def account() -> pwd.struct_passwd | None:
    """The account that runs servers in place of root; None for everybody else, who run their own."""
    return pwd.getpwnam(ACCOUNT) if os.geteuid() == 0 else None


def can_reach(path: Path) -> bool:
    """Whether a server may read below this folder: every folder above it lets strangers pass."""
    if account() is None:
        return True
    resolved = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in [resolved, *resolved.parents])
