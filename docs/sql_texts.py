"""What each statement of docs/sql.md is called there, and what it is for."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, tuple[str, str]]] = {
    "claim": (
        "Claim: find, lock and mark in one statement",
        "It takes the first due jobs that nobody has locked, and writes the owner into them. A batch holds "
        "suspects or fresh jobs, never both. It takes nothing if the owner was declared dead.",
    ),
    "claim after": (
        "Claim: after the last job of the claim before",
        "It is the same statement, and skips what stands before its last job in the order of the queue.",
    ),
    "turn": (
        "Settle and claim in one statement",
        "Between two batches of a loop it deletes the done jobs and claims the next ones. `:meant` is how "
        "many jobs are to be settled. If fewer were reached, it returns which, and claims nothing.",
    ),
    "turn at head": (
        "Settle and claim in one statement: from the head",
        "It is the same statement, and begins its search at the head of the queue.",
    ),
    "find": (
        "Claim, phase 1: find candidates",
        "A plain read of the index gives the first due jobs. It locks nothing.",
    ),
    "find after": (
        "Claim, phase 1: after the last job of the claim before",
        "It is the same statement, and skips what stands before its last job in the order of the queue.",
    ),
    "take": (
        "Claim, both phases: find candidates and lock those that are free",
        "The derived table is a plain read of the index. Only `jobs` is locked, and only until the batch is full.",
    ),
    "take after": (
        "Claim, both phases: after the last job of the claim before",
        "It is the same statement, and skips what stands before its last job in the order of the queue.",
    ),
    "count": (
        "Claim: how many candidates there were",
        "It is sent where a claim got fewer jobs than it wanted: are there more, or has somebody else locked them?",
    ),
    "count after": (
        "Claim: how many candidates there were after the last job of the claim before",
        "It is sent where a claim that began there got fewer jobs than it wanted.",
    ),
    "lock": (
        "Claim, phase 2: lock those that are free",
        "It locks the candidates that nobody has locked, and checks the whole predicate again. `:candidates` "
        "is a JSON array of what phase 1 found, such as `[[1], [2], [3]]`.",
    ),
    "mark": (
        "Claim, phase 2: mark them",
        "It writes the owner into the locked rows. It writes nothing if the owner was declared dead.",
    ),
    "done": (
        "Settle: done",
        "It deletes the done jobs of a batch that this owner still holds.",
    ),
    "kept": (
        'Settle: done, with `on_done="keep"`',
        "It writes the state of done jobs that stay in the table.",
    ),
    "released": (
        "Settle: released",
        "It makes jobs without an outcome free again; no attempt is counted.",
    ),
    "retried": (
        "Settle: failed, to be run again",
        "It counts an attempt and sets the time of the next one. There is one WHEN for each failed job; here one job.",
    ),
    "dead": (
        "Settle: failed for the last time",
        "It keeps the job and its last error for a person to look at. There is one WHEN for each such job; "
        "here one job.",
    ),
    "still mine": (
        "Settle: which jobs this owner still holds",
        "It is sent where a settle reached fewer rows than were meant. It locks those that are left, which "
        "are then settled.",
    ),
    "suspects": (
        "Settle: an error that names no job",
        "It makes the jobs free as suspects, which are claimed again in smaller batches. There is one WHEN "
        "for each job; here two jobs.",
    ),
    "enqueue": (
        "Enqueue",
        "It inserts the payload; all other columns have defaults.",
    ),
    "settings": (
        "An owner's new connection: its settings",
        "They hold for this session alone.",
    ),
    "isolation": (
        "An owner's new connection: its isolation",
        "It also holds for a statement that is sent without BEGIN.",
    ),
    "dates": (
        "An owner's new connection: how the server writes instants",
        "The client reads instants of this form.",
    ),
    "zone": (
        "An owner's new connection: its time zone",
        "A TIMESTAMP without a zone is compared with the clock by it.",
    ),
    "silence": (
        "An owner's new connection: when the server gives up its client",
        "A machine that vanishes says nothing, and its locks would stay. "
        'With `hold="transaction"` it is sent on Postgres, too.',
    ),
    "register": (
        "An owner registers",
        "A consumer inserts its row when it first claims. The id is never used again.",
    ),
    "used": (
        "An owner registers: does anybody have its id",
        "After a TRUNCATE of the table of owners, or a restore, the database may give an id that jobs or a session "
        "still have. Then the owner takes one above all that are in use.",
    ),
    "hold": (
        "An owner takes its session lock",
        "The server frees this lock when the process has died; so others learn of it at once. Its name contains the "
        "table of owners, because owners in two schemas may have one id.",
    ),
    "shown": (
        "An owner takes its session lock: who has it",
        "Some servers grant such locks and keep none: there only the lease counts.",
    ),
    "locked": (
        "An owner notes which session has the lock, and since when its server runs",
        "A free lock says nothing after a restart of the server, so the owner notes on which run it took the lock.",
    ),
    "paused": (
        "An owner registers: is the queue paused",
        "It is sent with each heartbeat, too, and when a sleeping owner wakes.",
    ),
    "beat": (
        "An owner writes a heartbeat",
        "It is sent every fifth of the lease. It reaches no row when the owner was declared dead; the owner "
        "then registers anew.",
    ),
    "long held": (
        "A heartbeat: which jobs this owner still holds",
        "It is sent if a claim is older than a heartbeat (2 s), so that its handler can see that a job was cancelled.",
    ),
    "plans": (
        "An owner forgets the plans of its session",
        "It is sent with each heartbeat: a plan that was made for a few rows reads and sorts a whole table when there "
        "are many.",
    ),
    "listen": (
        "An idle owner listens",
        "Its session hears when a producer wakes it.",
    ),
    "lie down": (
        "An idle owner says that it sleeps",
        "Producers wake the owners that have `asleep` set. It is a heartbeat too; the heartbeat above clears "
        "the column.",
    ),
    "check": (
        "An idle owner checks for work",
        "It asks whether a job is due, and how many other owners are awake. It is sent less and less often, up to "
        "every 3 s.",
    ),
    "careful": (
        "An idle owner checks for work, and for dead owners",
        "It is sent in place of the one above by the owner that looks after the dead, and by about three "
        "others in turn.",
    ),
    "wait": (
        "An idle owner waits",
        "It sleeps in the server until its next check; a producer can end that.",
    ),
    "call": (
        "Enqueue: find sleeping owners and wake them",
        "It is sent after the commit of an enqueue, or before the commit of a caller's transaction. It "
        "returns nothing while nobody sleeps.",
    ),
    "interrupt": (
        "Enqueue, after the commit: end the sleep of an owner",
        "`4711` stands for the session's number, which the statement above returned. The lock says that this "
        "session sleeps.",
    ),
    "held": (
        "An owner leaves: what it still holds",
        "These jobs are released. In a reclaim it says whether jobs are left that somebody has locked.",
    ),
    "leave": (
        "An owner leaves: its row",
        "It is deleted when the owner holds no job.",
    ),
    "lead": (
        "Looking after the dead: who checks most often",
        "The owner that gets this session lock reads the owners every 0.4 s, the others with each heartbeat.",
    ),
    "look": (
        "Looking after the dead: all owners of the table",
        "It reads heartbeats and session locks, and is sent with every heartbeat, and every 0.4 s by one owner.",
    ),
    "unknown owners": (
        "Looking after the dead: jobs whose owner is in no table",
        "One owner sends it every 5 s. The jobs that it finds are released.",
    ),
    "end session": (
        "Reclaim: end the session of a dead owner",
        "What that session still has under way is over before its jobs are released. `4711` stands for its number.",
    ),
    "seize": (
        "Reclaim: lock the owner's row",
        "Its last heartbeat is read again under the lock: if it is newer, the owner lives.",
    ),
    "declare dead": (
        "Reclaim: declare the owner dead",
        "It cannot claim or write a heartbeat after that.",
    ),
    "left behind": (
        "Reclaim: what the dead owner held",
        "Jobs that others have locked are left for later. The statements of a settle release the rest.",
    ),
    "claims of": (
        "Reclaim by hand, or by a supervisor: is it an owner of this table",
        "It reads from which table the owner claims.",
    ),
    "holder": (
        "Reclaim by hand, or by a supervisor: has its session ended",
        "It asks which session holds the owner's lock, and which one the owner noted; none holds it when the process "
        "has ended.",
    ),
    "list": (
        "Dead jobs: list",
        "It reads dead jobs by their keys, 1,000 at a time. `retry` and `drop` find theirs in the same way.",
    ),
    "revive": (
        "Dead jobs: retry",
        "It gives dead jobs all their attempts again. It reaches no row in another state.",
    ),
    "drop": (
        "Dead jobs: drop",
        "It deletes dead jobs. It reaches no row in another state.",
    ),
    "unfinished": (
        "Cancel: lock jobs that wait or are claimed",
        "It waits for nobody. Jobs that others have locked are tried again for 3 s.",
    ),
    "cancel": (
        "Cancel: make them dead",
        "An owner that has claimed such a job does not hold it any more: the guard refuses its outcome.",
    ),
    "not cancelled": (
        "Cancel: which are left",
        "Those that others had locked.",
    ),
    "old": (
        "Purge: find old jobs",
        "It reads the keys of kept jobs that are old, 1,000 at a time, each page after the last key of the one before.",
    ),
    "purge": (
        "Purge: delete them",
        "It asks again for status and age, and deletes one page in one transaction.",
    ),
    "batch take": (
        "Claims per batch: find candidates and lock those that are free",
        "It is the search of the other claims, without the jobs that are in a claim row.",
    ),
    "batch find": (
        "Claims per batch, phase 1: find candidates",
        "It is the search of the other claims, without the jobs that are in a claim row.",
    ),
    "batch take after": (
        "Claims per batch: find and lock after a place in the order",
        "A job with the priority of the place has a larger key. So batches with smaller keys are not read for it.",
    ),
    "batch find after": (
        "Claims per batch, phase 1: find candidates after a place in the order",
        "A job with the priority of the place has a larger key. So batches with smaller keys are not read for it.",
    ),
    "batch lock": (
        "Claims per batch, phase 2: lock those that are free",
        "It checks the predicate of the rows again. The claim rows are looked at by the next statement.",
    ),
    "batch record": (
        "Claims per batch: record the batch",
        "It begins after the rows were locked, and so it sees the batch of everybody who had locked them before. It "
        "writes nothing if one of the jobs is in a claim row now, or if the owner was declared dead.",
    ),
    "batch used": (
        "Claims per batch: an owner registers: does anybody have its id",
        "Instead of the claimed jobs the claim rows are searched.",
    ),
    "batch open now": (
        "Claims per batch: which of the jobs are in a claim row now",
        "It is sent where the batch was not recorded. The other jobs are then recorded.",
    ),
    "batch at once": (
        "Claims per batch, in a loop: find, lock and record the next batch",
        "It is sent together with the next statement, which settles the batch before, in one round trip. Both are one "
        "transaction, without BEGIN and COMMIT.",
    ),
    "batch turn": (
        "Claims per batch, in a loop: settle the batch before, and look at the claim rows again",
        "It begins after the rows were locked. If one of them is in a claim row of another claim, it deletes the new "
        "batch. If it cannot settle all `:meant` jobs, it raises an error, so that both statements are rolled back; "
        "then the jobs are settled by the statements below.",
    ),
    "batch finish": (
        "Claims per batch, settle: close a batch whose jobs are all done, and delete them",
        "It deletes no job if the owner does not hold the batch any more, or if the batch has other jobs as well. Then "
        "the settle is rolled back, and made by the statements below.",
    ),
    "batch close": (
        "Claims per batch, settle: close the batch",
        "It is sent before the jobs are written, and guards them: it reaches no row if the owner does not hold the "
        "batch any more.",
    ),
    "batch done": (
        "Claims per batch, settle: done",
        "It deletes the done jobs. A row that says another state now was changed by another program, and is left.",
    ),
    "batch locked": (
        "Claims per batch, settle of some jobs: lock the batches of the owner",
        "It is sent where the batch does not have just the jobs that are settled.",
    ),
    "batch numbered": (
        "Claims per batch, settle of some jobs: what is in the batches of the owner",
        "It shows which of the jobs the owner still holds.",
    ),
    "batch shorten": (
        "Claims per batch, settle of some jobs: take them out of their batch",
        "`:json` are the keys of the jobs that stay in it.",
    ),
    "batch still mine": (
        "Claims per batch, settle of some jobs: lock their rows",
        "A row that is gone, or that says another state, is a lost job.",
    ),
    "batch held": (
        "Claims per batch: what an owner still holds",
        "It is sent when the owner leaves.",
    ),
    "batch close all": (
        "Claims per batch: an owner leaves",
        "It deletes the batches of the owner before its row among the owners.",
    ),
    "key unknown": (
        "Per key: find keys without a key row",
        "The keys of the next jobs that wait, in the order of an index over status and key. Any program may have "
        "inserted them. It is sent now and then, and when a claim finds too few jobs.",
    ),
    "key unknown after": (
        "Per key: find keys without a key row, after a key",
        "Each page begins behind the last key of the page before.",
    ),
    "key appear": (
        "Per key: insert key rows for these keys",
        "Also for a key that is said to be next later than one of its jobs.",
    ),
    "key appear after": (
        "Per key: insert key rows for these keys, after a key",
        "As the one before.",
    ),
    "key next": (
        "Per key, claim: lock the next key rows",
        "In the order of `next_at`. Those that another claim has locked are left out.",
    ),
    "key next after": (
        "Per key, claim: lock the next key rows, after a place",
        "Each page of a claim begins behind the last key row of the page before.",
    ),
    "key claimed": (
        "Per key, claim: count what is claimed of these keys",
        "It begins when the key rows are locked. Whoever has claimed such a job had locked them, and has committed.",
    ),
    "key jobs": (
        "Per key, claim: find the first jobs of these keys",
        "`:each` is the largest number that may be claimed of one of them.",
    ),
    "key lock": (
        "Per key, claim: lock the jobs",
        "As a claim in two phases does.",
    ),
    "key mark": (
        "Per key, claim: mark the jobs",
        "As a claim in two phases does.",
    ),
    "key serve": (
        "Per key, claim: jobs of these keys were claimed",
        "Their keys are behind all others now.",
    ),
    "key hold back": (
        "Per key, claim: a limit holds keys back",
        "For some seconds at most. A settle ends that sooner.",
    ),
    "key waiting": (
        "Per key, claim: when keys without a due job have the next one",
        "A key that is not in the result has no job that waits.",
    ),
    "key wait": (
        "Per key, claim: a key waits for its next job",
        "Until the instant at which that is due. It is sent once, with the parameters of each such key.",
    ),
    "key end": (
        "Per key, claim: no job of these keys waits",
        "The key rows are deleted.",
    ),
    "key left": (
        "Per key, claim: whether an empty claim has to wait",
        "It counts the keys that are due, or held back with a job that is ready, up to a few.",
    ),
    "key place": (
        "Per key, with a rate: when a key is next",
        "The instant at which the rate allows another job.",
    ),
    "key make next": (
        "Per key, after a settle: its keys are next",
        "A key that a limit has held back is next now. It is a transaction of its own, after the commit of the settle.",
    ),
    "key make next given back": (
        "Per key, after a settle that gave jobs back: their keys are next",
        "The same, also for a key of which no job was due: a retry may be due before its others.",
    ),
    "key make all next": (
        "Per key, after jobs were reclaimed or released: all keys are next",
        "As above, for any key.",
    ),
    "key make next again": (
        "Per key, claim: keys that the last claim has held back are next",
        "If another job may be claimed now: a settle between the last count and its commit was not seen.",
    ),
}
"""By the names of `docs.sql_statements.statements`: a heading, and a sentence that stands before the statement."""
