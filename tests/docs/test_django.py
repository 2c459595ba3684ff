"""The pages about Django: their files are projects, which migrate, serve a request, work and are tested, as shown."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.backends import Backend
from tests.docs.markdown import DJANGO, DJANGO_TASKS, ROOT, blocks

SETTINGS = """\
import os
import pymysql
import sqlalchemy as sa

pymysql.install_as_MySQLdb()
url = sa.make_url(os.environ["CLAIMJOBS_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends." + ("postgresql" if url.get_backend_name() == "postgresql" else "mysql"),
        "NAME": url.database, "USER": url.username, "PASSWORD": url.password or "",
        "HOST": url.host or "", "PORT": str(url.port or ""),
        "TEST": {"NAME": url.database + "_django"},
    }
}
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
"""
URLS = """\
from django.urls import path
from parcels.views import send_parcel

urlpatterns = [path("parcels", send_parcel)]
"""
REQUEST = "import parcels.delivery; from django.test import Client; Client().post('/parcels', {'address': 'bob'})"
TASKS = """\
from datetime import timedelta
from django.db import transaction
from django.utils import timezone
from django.tasks import task

@task
def late(a, b):
    print("late", a + b)

@task(queue_name="reports", priority=5, takes_context=True)
async def first(context, name):
    print("first", name, "in attempt", context.attempt, "of task", context.task_result.id)

def enqueue():
    with transaction.atomic():
        late.enqueue(1, b=2)
        late.using(run_after=timezone.now() + timedelta(days=1)).enqueue(3, 4)
        print("result", first.enqueue("ada").id)
    try:
        with transaction.atomic():
            late.enqueue(5, 6)
            raise LookupError
    except LookupError:
        pass
"""


@pytest.mark.thorough("the files of a page, run by another framework's commands")
def test_the_project_that_is_shown_migrates_works_and_tests_itself(database: Backend, tmp_path: Path) -> None:
    _write(DJANGO, tmp_path, "parcels", SETTINGS + 'ROOT_URLCONF = "project.urls"\n')
    (tmp_path / "project/urls.py").write_text(URLS)
    [shown] = blocks(DJANGO, "sh")
    setting, migrate, work = shown.text.splitlines()
    _said(database, tmp_path, f'{setting}; {migrate}; python -c "{REQUEST}"')
    assert [(row["address"], row["status"]) for row in database.rows("parcels")] == [("bob", "unclaimed")]
    assert "to bob" in _said(database, tmp_path, f"{setting}; {work}")
    assert database.rows("parcels") == []
    for order in ("", "--reverse"):
        assert "Ran 2 tests" in _said(database, tmp_path, f"{setting}; python -m django test --noinput {order} 2>&1")


@pytest.mark.thorough("the files of a page, run by another framework's commands")
def test_the_backend_of_djangos_tasks_that_is_shown_stores_and_runs_them(database: Backend, tmp_path: Path) -> None:
    [setting] = [block.text for block in blocks(DJANGO_TASKS, "python") if not block.file]
    _write(DJANGO_TASKS, tmp_path, "work", SETTINGS + setting)
    (tmp_path / "work/tasks.py").write_text(_for_this_django(TASKS))
    [shown] = blocks(DJANGO_TASKS, "sh")
    setting, migrate, work = shown.text.splitlines()
    enqueue = 'python -c "import django; django.setup(); from work import tasks; tasks.enqueue()"'
    assert "result 3" in _said(database, tmp_path, f"{setting}; {migrate}; {enqueue}")
    said = _said(database, tmp_path, f"{setting}; {work.replace('--consumers 2', '--consumers 1')}").splitlines()
    assert said[:2] == ["first ada in attempt 1 of task 3", "late 3"]
    [left] = database.rows("tasks")
    assert (left["task"], left["status"], left["attempts"]) == ("work.tasks.late", "unclaimed", 0)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert abs(left["run_at"].replace(tzinfo=UTC) - tomorrow) < timedelta(hours=1), "no hour is lost between time zones"


def _write(page: Path, folder: Path, app: str, settings: str) -> None:
    """The project of a page."""
    for package in ("project", app, f"{app}/migrations"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    (folder / "project/settings.py").write_text(f"{settings}INSTALLED_APPS = [{app!r}]\n")
    for block in blocks(page, "python"):
        if block.file:
            (folder / block.file).write_text(_for_this_django(block.text))


def _for_this_django(text: str) -> str:
    """Before Django 6 tasks are a package of their own."""
    return text if importlib.util.find_spec("django.tasks") else text.replace("django.tasks", "django_tasks")


def _said(database: Backend, folder: Path, line: str) -> str:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
    environment = {
        **os.environ,
        "CLAIMJOBS_URL": database.url_without_driver,
        "PATH": path,
        "PYTHONPATH": f"{ROOT}:{folder}",
    }
    command = ("sh", "-c", f"set -e; {line}")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout
