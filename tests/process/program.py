"""A user's own program: a loop that ends when it is told to, by the public means alone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from claimjobs import Queue, stop_on_signals


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def wait_for_the_gate(queue: Queue) -> None:
    told = False
    while not os.path.exists(os.environ["GATE"]):
        with contextlib.suppress(*[BaseException] if "STUBBORN" in os.environ else []):
            while not os.path.exists(os.environ["GATE"]):
                if queue.stopping and not told:
                    told = True
                    say("told")
                time.sleep(0.01)


before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
with Queue(os.environ["CLAIMJOBS_URL"]) as queue:
    with stop_on_signals(queue, timeout=float(os.environ["TIMEOUT"]) if "TIMEOUT" in os.environ else None):
        queue.check()
        say("ready")
        for batch in queue.batches(10):
            with batch:
                say("begun")
                wait_for_the_gate(queue)
                batch.done()
            if batch.lost:
                say(f"lost {len(batch.lost)}")
    say(f"stopping {queue.stopping}")
say(f"restored {before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))}")
