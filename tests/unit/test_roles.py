"""Which column plays which role."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from claimjobs import job_table
from claimjobs.dialects.inspection import Location
from claimjobs.errors import ColumnMissing, KeyUnfit
from claimjobs.table.definitions import article_table
from claimjobs.table.roles import roles_of


def table(*columns: str, key: str | None = "id") -> sa.Table:
    types = {"status": sa.String(9)}
    made = [sa.Column(name, types.get(name, sa.Integer()), primary_key=name == key) for name in columns]
    return sa.Table("orders", sa.MetaData(), *made)


def test_a_table_of_ours_has_every_role() -> None:
    roles = roles_of(job_table("emails", sa.MetaData(), sa.Column("address", sa.Text)))
    assert [column.name for column in roles.key] == ["id"]
    assert [column.name for column in roles.payload] == ["address"]
    assert [column.name for column in roles.default_order] == ["priority", "id"]
    for role in ("owner_date", "priority", "run_at", "attempts", "last_error"):
        assert roles.need(role, "this").name == role


def test_the_articles_table_has_its_own_names() -> None:
    assert [column.name for column in roles_of(article_table()).payload] == ["d", "e"]


def test_a_key_of_the_users_takes_the_place_of_ours() -> None:
    made = job_table("parts", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True))
    assert "id" not in made.c
    assert [column.name for column in roles_of(made).key] == ["number"]


def test_the_least_is_a_key_a_status_and_an_owner() -> None:
    roles = roles_of(table("id", "status", "owner_id"))
    assert [column.name for column in roles.default_order] == ["id"]
    assert roles.payload == ()
    assert str(roles.due(sa.func.now())) == "orders.status = :status_1"


def test_the_guard_is_the_status_and_the_owner() -> None:
    assert str(roles_of(article_table()).mine) == "jobs.status = :status_1 AND jobs.owner_id = :claimjobs_me"


def test_a_state_that_no_row_can_express_is_that_of_no_row() -> None:
    """Not that of unclaimed jobs, whose value such a state would have otherwise."""
    only_owner = roles_of(table("id", "owner_id")).state
    assert str(only_owner.row_says("claimed")) == "orders.owner_id IS NOT NULL"
    assert str(only_owner.row_says("dead")) == str(only_owner.row_says("done")) == "false"


@pytest.mark.parametrize("role", ["status", "owner_id"])
def test_a_role_that_every_claim_needs(role: str) -> None:
    columns = [name for name in ("id", "status", "owner_id") if name != role]
    with pytest.raises(ColumnMissing, match=f"no column '{role}', which claiming needs: ALTER TABLE orders ADD COLUMN"):
        roles_of(table(*columns)).need(role, "claiming")


def test_a_role_that_only_one_feature_needs() -> None:
    with pytest.raises(ColumnMissing, match="'attempts', which retrying needs: ALTER TABLE orders ADD COLUMN attempts"):
        roles_of(table("id", "status", "owner_id")).need("attempts", "retrying")


def test_an_instant_has_another_type_in_every_database() -> None:
    with pytest.raises(ColumnMissing, match=r"'run_at', .* run `claimjobs setup-tables --table orders --add run_at`"):
        roles_of(table("id", "status", "owner_id")).need("run_at", "retrying")


def test_no_key() -> None:
    with pytest.raises(KeyUnfit, match="add one, or choose another table"):
        roles_of(table("id", "status", "owner_id", key=None))


def test_a_name_with_its_schema() -> None:
    roles = roles_of(job_table("jobs", sa.MetaData(schema="shop")))
    assert roles.name == "shop.jobs"


def test_a_side_car_is_named_after_the_table_as_the_server_spells_it() -> None:
    """Where names of tables have no case, each program may spell the table in another way."""
    table = sa.Table("MAILS", sa.MetaData())
    assert Location("own", "mails", is_default=True).full_name(table) == "mails"
    assert Location("other", "mails", is_default=False).full_name(table) == "other.mails"
    assert Location("other", "mails", is_default=False).full_name(sa.Table("x", sa.MetaData(schema="o"))) == "o.mails"
