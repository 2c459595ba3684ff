"""Peers: other job queues beside claimjobs, each in an environment of its own. A development tool.

`catalogue` names them with their versions; `systems` holds a file for each, which runs in that system's own
environment; `environments` makes those; `race` lets them run; `report` tells what came out.
"""
