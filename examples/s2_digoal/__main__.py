"""`python -m examples.s2_digoal --help`."""

if __name__ == "__main__":  # a worker imports this file too
    from examples.command import command
    from examples.s2_digoal import run

    command("s2_digoal", run)
