"""A system whose queue is a file, and which does what the end of its URL says."""

from __future__ import annotations

import sys

from benchmarks.peers.driver import Line, Order, did, note


def work(order: Order, line: Line) -> None:
    how = order.url.rpartition("/")[2]
    mine = [d for number, (d, _) in enumerate(order.read()) if number % order.workers == order.number]
    sys.stdout.write("a banner\n")
    line.ready()
    if how == "dies":
        sys.exit("out of luck")
    if how == "wrong":
        mine[0] = mine[1]
    if how != "idle":
        for d in mine:
            (note if how == "children" else did)(d)
    line.stop.wait()
