"""`python -m examples.s5_leontrolski --help`."""

if __name__ == "__main__":  # a worker imports this file too
    from examples.command import command
    from examples.s5_leontrolski import run

    command("s5_leontrolski", run)
