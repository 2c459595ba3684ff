"""`MODULE:ATTRIBUTE`: a Python object, named on a command line."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from claimjobs.errors import FOLDER_GONE, ClaimjobsError, ReferenceNotFound
from claimjobs.log_records import enable_loggers


def is_reference(text: str) -> bool:
    """Whether the text names a Python object, and not a table."""
    return ":" in text


def load(reference: str) -> Any:
    """The object that `MODULE:ATTRIBUTE` names. Modules of the current folder are found, too.

    Raises ReferenceNotFound, with the reason.
    """
    module_name, _, path = reference.partition(":")
    if path and ("/" in module_name or module_name.endswith(".py")):
        module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ReferenceNotFound(reference, f"{module_name!r} is a path: name the module, as in {module}:{path}")
    if not module_name or not path:
        raise ReferenceNotFound(reference, "it is not of the form MODULE:ATTRIBUTE")
    found: Any = _module(reference, module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ReferenceNotFound(reference, f"module {module_name!r} has no {path!r}") from None
    return found


def _module(reference: str, name: str) -> Any:
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise ClaimjobsError(FOLDER_GONE) from None
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        # A user's module may raise any error while it is imported. The message names the reference.
        raise ReferenceNotFound(reference, f"importing {name!r} failed: {type(error).__name__}: {error}") from error
    finally:
        enable_loggers()  # it may have configured the log
