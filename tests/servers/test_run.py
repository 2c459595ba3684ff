"""`python -m servers run`: the command's surroundings and its end."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough("it starts servers of its own, to see how they start and end")

RUN = [sys.executable, "-m", "servers", "run", "postgres", "--"]
WAITS_FOR_CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(23))
print("ready", flush=True)
signal.pause()
"""


def test_the_command_has_the_url_and_its_status_is_passed_on() -> None:
    done = subprocess.run(
        [*RUN, "sh", "-c", 'echo "$CLAIMJOBS_URL"; exit 7'], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    assert done.stdout.startswith("postgresql+psycopg://claimjobs:")


def test_ctrl_c_is_the_commands_to_answer() -> None:
    command = [*RUN, sys.executable, "-c", WAITS_FOR_CTRL_C]
    with subprocess.Popen(command, stdout=-1, text=True, process_group=0) as running:
        assert running.stdout
        assert running.stdout.readline() == "ready\n"
        terminal_sends(running.pid, signal.SIGINT)
    assert running.returncode == 23


def terminal_sends(group: int, number: signal.Signals) -> None:
    """A terminal signals every process of the group in the foreground."""
    os.killpg(group, number)


def test_a_command_that_is_not_there_gets_a_message() -> None:
    done = subprocess.run([*RUN, "no-such-command"], capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert "there is no command no-such-command" in done.stderr
