"""`python -m examples.s4_tiikkaja --help`."""

if __name__ == "__main__":  # a worker imports this file too
    from examples.command import command
    from examples.s4_tiikkaja import run

    command("s4_tiikkaja", run)
