"""The page about Django: its files are a project, which migrates, serves a request, works and is tested, as shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.backends import Backend
from tests.docs.markdown import DJANGO, ROOT, blocks

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
INSTALLED_APPS = ["parcels"]
ROOT_URLCONF = "project.urls"
USE_TZ = True
"""
URLS = """\
from django.urls import path
from parcels.views import send_parcel

urlpatterns = [path("parcels", send_parcel)]
"""
REQUEST = "import parcels.delivery; from django.test import Client; Client().post('/parcels', {'address': 'bob'})"


@pytest.mark.thorough("the files of a page, run by another framework's commands")
def test_the_project_that_is_shown_migrates_works_and_tests_itself(database: Backend, tmp_path: Path) -> None:
    for package in ("project", "parcels", "parcels/migrations"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "project/settings.py").write_text(SETTINGS)
    (tmp_path / "project/urls.py").write_text(URLS)
    for block in blocks(DJANGO, "python"):
        assert block.file
        (tmp_path / block.file).write_text(block.text)
    [shown] = blocks(DJANGO, "sh")
    setting, migrate, work = shown.text.splitlines()
    _said(database, tmp_path, f'{setting}; {migrate}; python -c "{REQUEST}"')
    assert [(row["address"], row["status"]) for row in database.rows("parcels")] == [("bob", "unclaimed")]
    assert "to bob" in _said(database, tmp_path, f"{setting}; {work}")
    assert database.rows("parcels") == []
    assert "Ran 1 test" in _said(database, tmp_path, f"{setting}; python -m django test --noinput 2>&1")


def _said(database: Backend, folder: Path, line: str) -> str:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
    url = sa.make_url(database.url).set(drivername=database.engine.dialect.name).render_as_string(hide_password=False)
    environment = {**os.environ, "CLAIMJOBS_URL": url, "PATH": path, "PYTHONPATH": f"{ROOT}:{folder}"}
    command = ("sh", "-c", f"set -e; {line}")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout
