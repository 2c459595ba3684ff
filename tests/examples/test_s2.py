"""S2: the article's functions at work, counted, and what they undo."""

from __future__ import annotations

import pytest

from examples.harness import fresh
from examples.s2_digoal import run as example
from examples.s2_digoal.author import Author, setup
from examples.s2_digoal.client import ALREADY, ASSIGNED, NOTHING
from examples.s2_digoal.ours import Ours
from tests.backends import Backend
from tests.examples.conftest import at, told

pytestmark = pytest.mark.thorough("an example of an article, as a whole")

SIZES = {"clients": 4, "free_workers": 20, "tasks": 200, "seconds": 0.5}


@pytest.fixture
def pools(anywhere: Backend) -> str:
    """Two workers and two tasks, all free, and the article's functions."""
    fresh(anywhere.url, example.NAME, example.TABLES)
    setup(anywhere.url)
    example.fill_pool(anywhere.url, "java_pool", 2)
    example.fill_pool(anywhere.url, "task_pool", 2)
    return anywhere.url


def test_the_articles_functions_say_what_became_of_a_call(pools: str) -> None:
    client = Author(pools)
    outcome, worker = client.pick_worker(7)
    assert outcome == ASSIGNED
    assert worker in (1, 2)
    assert client.pick_worker(7) == (ALREADY, -1)
    assert client.pick_worker(8)[0] == ASSIGNED
    assert client.pick_worker(9) == (NOTHING, None)
    assert client.release(worker)
    assert not client.release(worker)
    assert client.pick_worker(9) == (ASSIGNED, worker)
    client.close()


def test_the_other_way_round_and_a_new_pair(pools: str) -> None:
    client = Author(pools)
    assert {client.pick_task(worker)[1] for worker in (70, 71)} == {1, 2}
    assert client.pick_task(72) == (NOTHING, None)
    assert client.insert(5, 50) == (ASSIGNED, 5)
    assert client.insert(5, 51) == (ALREADY, None)
    assert client.insert(6, 50) == (ALREADY, None)
    client.close()


# --- ours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", example.SCENES, ids=lambda scene: scene.title)
def test_no_pair_of_ours_is_undone(database: Backend, scene: example.Scene) -> None:
    said = example.Play(database.url, scene, Ours, at(example, **SIZES)).run()
    assert said.endswith(" 0 undone")


def test_ours_says_what_became_of_a_call(database: Backend) -> None:
    fresh(database.url, example.NAME, example.TABLES)
    for table in ("java_pool", "task_pool"):
        example.fill_pool(database.url, table, 1)
    client = Ours(database.url)
    assert client.pick_worker(7) == (ASSIGNED, 1)
    assert client.pick_worker(7) == (ALREADY, None)
    assert client.pick_worker(8) == (NOTHING, None)
    assert client.release(1)
    assert not client.release(1)
    assert client.pick_task(70) == (ASSIGNED, 1)
    assert client.pick_task(71) == (NOTHING, None)
    assert client.insert(5, 50) == (ASSIGNED, 5)
    assert [client.insert(5, 51), client.insert(6, 50)] == [(ALREADY, None)] * 2
    client.close()


# --- all of it -----------------------------------------------------------------------------------------------


def test_the_authors_and_ours_side_by_side(anywhere: Backend) -> None:
    figures = told(example.run(anywhere.url, at(example, **SIZES)))
    assert list(figures) == [
        f"{scene.title}: {way}" for way in ("the author's", "claimjobs") for scene in example.SCENES
    ]
