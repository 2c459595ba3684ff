"""What both systems on Django share: settings, and a database as Django names it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import django
from django.conf import settings

from benchmarks.peers.driver import Order


def configure(order: Order, app: str, backend: str, **options: Any) -> None:
    """Connections stay open: their default is to be opened anew each time, which nobody wants of a worker."""
    if not order.is_postgres:
        _pymysql_for_mysqlclient()
    parts = order.parts
    database = {
        "ENGINE": f"django.db.backends.{'postgresql' if order.is_postgres else 'mysql'}",
        "NAME": parts.path.removeprefix("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
        "CONN_MAX_AGE": None,
    }
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=[app],
        TASKS={"default": {"BACKEND": backend, "QUEUES": ["default"], "OPTIONS": options}},
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()


def _pymysql_for_mysqlclient() -> None:
    """The driver that claimjobs has as well, under the name and version that Django looks for."""
    import pymysql  # noqa: PLC0415 - only for MySQL

    pymysql.version_info = (2, 2, 7, "final", 0)
    pymysql.install_as_MySQLdb()
