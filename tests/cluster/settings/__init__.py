"""The settings: each module here has some, in a tuple `SETTINGS`."""

from __future__ import annotations

import importlib
import pkgutil

from tests.cluster.setting import Setting


def all_settings() -> list[Setting]:
    """Those of all modules of this folder, in the order of the modules' names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [setting for module in modules for setting in module.SETTINGS]
