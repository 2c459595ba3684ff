"""Owners: who may hold jobs, and what they hold."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from claimjobs.roles import Roles


def register(owners: sa.Table) -> sa.Insert:
    """A new owner (`host`, `pid`, `claims`); the database gives it an id that nobody had before."""
    return sa.insert(owners)


def leave(owners: sa.Table) -> sa.Delete:
    """The owner `me` is no more."""
    return sa.delete(owners).where(owners.c.id == sa.bindparam("me", type_=sa.Integer))


def held(roles: Roles) -> sa.Select[Any]:
    """The keys of all jobs that `me` holds."""
    return sa.select(*roles.key).where(roles.mine)


def everyone(owners: sa.Table, now: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """All owners of jobs of the table `claims`, with the clock they are to be read by."""
    claims = sa.bindparam("claims", type_=sa.String)
    return sa.select(*owners.columns, now.label("now")).where(owners.c.claims == claims).order_by(owners.c.id)
