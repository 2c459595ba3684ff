"""What a consumer process imports: each of many processes pays for it at its start."""

from __future__ import annotations

import json
import subprocess
import sys

# What the script `claimjobs` imports, a process that it spawns imports, too.
CODE = "import json, sys, claimjobs.__main__, claimjobs.workers.process_main; print(json.dumps(list(sys.modules)))"


def test_a_consumer_imports_no_tracer_no_command_line_no_orm_and_nothing_of_explain() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    ours = ("claimjobs.explain", "claimjobs.metrics", "claimjobs.cli")
    unwanted = (*ours, "opentelemetry", "prometheus_client", "sqlalchemy.orm")
    assert [name for name in json.loads(done.stdout) if name.startswith(unwanted)] == []
