"""Two tenants, each with a schema of its own: in one database, or as two databases where a schema is a database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa

from tests.backends import Backend, Servers


@contextlib.contextmanager
def neighbour_of(backend: Backend, servers: Servers) -> Iterator[Backend]:
    """Another empty schema: in the database of `backend`, which gets a schema of its own, or a database beside it."""
    lent = servers.lend(backend.family)
    if backend.has("schemas"):
        for tenant, place in (("tenant1", backend), ("tenant2", lent)):
            backend.run(f"CREATE SCHEMA {tenant}")
            _move(place, sa.make_url(backend.url), tenant)
    yield lent
    lent.close()


def _move(place: Backend, url: sa.URL, schema: str) -> None:
    """Let a backend work in this schema from now on."""
    place.url = url.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(hide_password=False)
    place.engine = place.new_engine()
