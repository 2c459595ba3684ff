"""Put on PYTHONPATH: a process that is spawned stays at its first lines until the file named by GATE is there."""

import os
import sys
import time

if any("spawn_main" in word for word in sys.orig_argv):
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)
