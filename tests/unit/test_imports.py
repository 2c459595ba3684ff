"""What a consumer process imports: each of many processes pays for it at its start."""

from __future__ import annotations

import json
import subprocess
import sys


def test_a_consumer_imports_no_tracer_and_nothing_of_explain() -> None:
    code = "import json, sys, claimjobs.workers.process_main; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unwanted = ("opentelemetry", "prometheus_client", "claimjobs.explain", "claimjobs.metrics", "claimjobs.cli")
    assert [name for name in json.loads(done.stdout) if name.startswith(unwanted)] == []
