"""`make bench`: every scenario, on Postgres and MySQL."""

from benchmarks.command import all_of_them

if __name__ == "__main__":
    all_of_them()
