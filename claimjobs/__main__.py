"""The command `claimjobs`, also as `python -m claimjobs`."""


def main() -> None:
    """Run the command line. It is imported here: a process that it spawns imports what the script `claimjobs` does."""
    from claimjobs.cli import main as command_line  # noqa: PLC0415

    command_line()


if __name__ == "__main__":
    main()
