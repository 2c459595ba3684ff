"""`python -m examples.s1_depesz --help`."""

if __name__ == "__main__":  # a worker imports this file too
    from examples.command import command
    from examples.s1_depesz import run

    command("s1_depesz", run)
