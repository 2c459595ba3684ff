"""`python -m examples.s3_isotopp --help`."""

if __name__ == "__main__":  # a worker imports this file too
    from examples.command import command
    from examples.s3_isotopp import run

    command("s3_isotopp", run)
