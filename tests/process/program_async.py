"""As `program`, in asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from claimjobs import Queue, stop_on_signals


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def wait_for_the_end(queue: Queue) -> None:
    while not queue.stopping:
        await asyncio.sleep(0.01)
    asyncio.get_running_loop().call_soon(say, "told")  # so the next signal comes while no code of a task runs
    await asyncio.Event().wait()


async def main() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Queue(os.environ["CLAIMJOBS_URL"]) as queue:
        with stop_on_signals(queue, timeout=float(os.environ["TIMEOUT"]) if "TIMEOUT" in os.environ else None):
            queue.check()
            say("ready")
            async for batch in queue.abatches(10):
                async with batch:
                    say("begun")
                    await wait_for_the_end(queue)
                    batch.done()
        await asyncio.sleep(0)  # the task is not cancelled any more
        say(f"stopping {queue.stopping}")
    say(f"restored {before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))}")


asyncio.run(main())
