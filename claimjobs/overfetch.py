"""Over-fetch: how many candidates to read for the jobs wanted."""

from __future__ import annotations

from claimjobs.phases import Claimed


class Overfetch:
    """How many candidates to read for each job wanted, learned from what the last claims met.

    Consumers that read the same head lock the same rows: with ten of them and no over-fetch, nine claims of ten
    come back empty. Reading a few batches' worth lets each find its own, in order. The factor doubles when a
    claim falls short, is four times as large when a claim takes nothing, and settles a little above what full claims
    needed.
    """

    LARGEST = 32
    SPARE = 1.25
    """What a claim reads above its recent need: others move on while it looks."""
    MEMORY = 0.8
    """The weight of what was known before against the claim just made."""

    def __init__(self) -> None:
        self.factor = 1.0

    def limit(self, size: int) -> int:
        """Candidates to read for a batch of `size`."""
        return max(size, round(size * self.factor))

    def most(self, size: int) -> int:
        """More it never reads."""
        return size * self.LARGEST

    def learn(self, claimed: Claimed, size: int, limit: int) -> None:
        """Adapt to a claim of `size` that was allowed `limit` candidates. One of suspects teaches nothing."""
        if claimed.suspects:
            return
        if len(claimed.jobs) == size:
            need = self.SPARE * claimed.reach / size if claimed.collisions else 1.0
            self.factor = max(1.0, self.MEMORY * self.factor + (1 - self.MEMORY) * need)
        elif claimed.found >= limit:  # there was more to read
            self.factor = min(self.factor * (2 if claimed.jobs else 4), self.LARGEST)
