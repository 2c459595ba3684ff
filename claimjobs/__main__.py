"""`python -m claimjobs`."""

from claimjobs.cli import main

if __name__ == "__main__":
    main()
