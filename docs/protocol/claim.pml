/* The protocol of claimjobs, as small as it can be and still go wrong: one job, two consumers, a server.

   What may happen to them, MISHAPS times in all: the answer to a commit is lost, though it happened, or as it did
   not; the line goes dead with the commit under way, to arrive much later or never; a process is killed, or its whole
   machine vanishes and leaves its session behind; the server restarts; an owner that lives is taken for dead.

   Shown: no two owners settle one claim, and only its own settles it; what is reported as settled is; nothing stays
   claimed for ever, and the job is done at last, while one consumer lives.

   -DLEASE_ONLY     there are no session locks, as behind a pooler: nobody can end the session of the dead, and the
                    server itself ends a session that was left behind, sooner or later
   -DLOCKING_FENCE  the fence holds the owner's row until the claim is committed, as on MySQL; otherwise it reads a
                    snapshot, as on Postgres
   -DBATCHES        claims per batch: a row of its own is the claim, and no job is written. Who locks the job's row is
                    not told that it was claimed, so that a claim looks a second time, under its lock. A settle deletes
                    the batch, then waits for the job's row

   `make model` runs it, and again with each rule left out, which must be found out: see tests/protocol/model.py.

   -DNO_GUARD       a settle does not look who holds the claim
   -DNO_SECOND_LOOK a claim per batch believes what it saw before it had locked the job's row
   -DNO_FENCE       a claim does not look whether its owner was declared dead
   -DNO_SWEEP       nobody looks for jobs whose owner is in no table
   -DNO_DOUBT       after a lost answer nobody looks for claims that happened
   -DNO_WREST       who comes back does not end the session that it left behind
   -DNO_KILL        a janitor does not end the session of the dead
   -DNO_ASK         after a lost answer a refusal is taken for "it happened" */

#ifndef MISHAPS
#define MISHAPS 2
#endif
#define IDS 9            /* 1 to 8: one for each consumer, and two more for each of three mishaps (asserted) */

#define FREE 0           /* the job, as committed: FREE, DONE, or the id of the owner that has claimed it: that of its
                            row or, with BATCHES, of the open batch that it is in */
#define DONE 255
#define CLAIMED (job != FREE && job != DONE)

mtype = { NONE, CLAIM, SETTLE,
          LOOK,          /* BATCHES: the job's row is locked, and no batch was inserted yet */
          TAKE_OUT };    /* BATCHES: the batch was deleted, and the job's row is not locked yet */

typedef Session {
    bool open;
    bool left;           /* its consumer has given up on it, the server has not */
    bool arriving;       /* the commit is on its way, though its sender has given up on the line */
    byte lock;           /* the owner whose session lock it holds */
    byte name;           /* in whose name the transaction is */
    byte claim;          /* which claim a settle means */
    mtype tx;            /* a transaction not committed yet; it has the job's row locked, but for TAKE_OUT */
}

Session at[4];           /* of consumer c: 2c and 2c + 1; one in use, the other perhaps left behind */
byte job = FREE;
byte claims;             /* how often the job was claimed: the ghost by which one claim is told from another */
byte settled;            /* which claim was settled */
byte next = 1;           /* the next owner's id */
bool alive[IDS];         /* its row is there, and it was not declared dead */
byte id[2];              /* under which consumer c goes; 0: it is dead */
bool gone[IDS];          /* its row was taken out */
byte looked_at;          /* the owner that a janitor has found dead, until it gives a sign of life */
byte mishaps;

#define LOCKS_ROW(k) (at[k].tx != NONE && at[k].tx != TAKE_OUT)
#define ROW_LOCKED (LOCKS_ROW(0) || LOCKS_ROW(1) || LOCKS_ROW(2) || LOCKS_ROW(3))
#define SETTLING(k, i) ((at[k].tx == TAKE_OUT || at[k].tx == SETTLE) && at[k].name == i)
#define BATCH_LOCKED(i) (SETTLING(0, i) || SETTLING(1, i) || SETTLING(2, i) || SETTLING(3, i))
#ifdef BATCHES
#define CLAIM_LOCKED(i) BATCH_LOCKED(i)
#else
#define CLAIM_LOCKED(i) ROW_LOCKED
#endif
#define LOCK_HELD(i) (at[0].lock == i || at[1].lock == i || at[2].lock == i || at[3].lock == i)
#define CLAIMING(k, i) (at[k].tx == CLAIM && at[k].name == i)
#define BEING_CLAIMED(i) (CLAIMING(0, i) || CLAIMING(1, i) || CLAIMING(2, i) || CLAIMING(3, i))
#define OTHER (4 * c + 1 - use)
#define MISHAP (mishaps < MISHAPS)

inline end_session(k) { at[k].open = false; at[k].left = false; at[k].arriving = false; at[k].lock = 0; at[k].tx = NONE }

inline end_sessions_of(i) {
    if :: at[0].lock == i -> end_session(0) :: else fi;
    if :: at[1].lock == i -> end_session(1) :: else fi;
    if :: at[2].lock == i -> end_session(2) :: else fi;
    if :: at[3].lock == i -> end_session(3) :: else fi
}

inline commit(k) {
    if
    :: at[k].tx == CLAIM ->
        assert(job == FREE);                 /* nothing is claimed twice: no job is in two open batches */
        job = at[k].name; claims++
    :: at[k].tx == SETTLE ->
        assert(!settled);                    /* nothing is settled twice */
        assert(at[k].claim == claims);       /* and by nobody but the owner of the claim */
        settled = claims; job = DONE
    fi;
    at[k].tx = NONE; at[k].arriving = false
}

inline register(c) {
    assert(next < IDS);
    id[c] = next; alive[next] = true; next++
}

/* On a new connection: under the old id if it lives, else under a new one. A transaction of its own. */
inline connect(c) {
    use = (at[2 * c].open -> 2 * c + 1 : 2 * c);
    assert(!at[use].open);
    if :: id[c] && alive[id[c]] :: else -> register(c) fi;
    if :: looked_at == id[c] -> looked_at = 0 :: else fi;
    at[use].open = true;
#ifndef LEASE_ONLY
#ifndef NO_WREST
    end_sessions_of(id[c]);
#endif
    if :: !LOCK_HELD(id[c]) -> at[use].lock = id[c] :: else fi
#endif
}

/* What may become of a commit. `told`: the answer came. */
inline send_commit(c) {
    told = false;
    if
    :: !at[use].open                                               /* ended by somebody: rolled back */
    :: at[use].open -> commit(use); told = true
    :: at[use].open && MISHAP -> mishaps++; commit(use); end_session(use)
    :: at[use].open && MISHAP -> mishaps++; end_session(use)
    :: at[use].open && MISHAP && !at[OTHER].open -> mishaps++; at[use].left = true; at[use].arriving = true
    :: at[use].open && MISHAP && !at[OTHER].open -> mishaps++; at[use].left = true
    fi;
    if :: !told -> doubt = true :: else fi
}

#define LOST (!at[use].open || at[use].left)

proctype Consumer(byte c) {
    byte use;            /* its session */
    bool doubt;          /* a commit was not answered */
    bool told, in_hand;
    byte hand_id, hand_claim;

    atomic { use = 2 * c; connect(c) }
    do
    :: job == DONE && !in_hand -> break

    /* the connection is lost: another one */
    :: atomic { LOST -> connect(c) }

    /* declared dead meanwhile: a beat, or a claim that is refused, finds out */
    :: atomic { !LOST && !alive[id[c]] ->
        register(c);
#ifndef LEASE_ONLY
        at[use].lock = id[c]
#endif
        }

    /* claim: find, lock, mark; then commit */
#ifdef BATCHES
    :: atomic { !LOST && !in_hand && job == FREE && alive[id[c]] -> skip };  /* one that was refused finds out: above */
        atomic { if :: !LOST && job != DONE && !ROW_LOCKED -> at[use].tx = LOOK :: else fi };
        atomic {
            if
#ifdef NO_SECOND_LOOK
            :: at[use].tx == LOOK && alive[id[c]] ->
#else
            :: at[use].tx == LOOK && job == FREE && alive[id[c]] ->
#endif
                at[use].tx = CLAIM; at[use].name = id[c]
            :: else -> at[use].tx = NONE
            fi };
        atomic {
            if
            :: at[use].tx == CLAIM ->
                send_commit(c);
                if :: told -> in_hand = true; hand_id = id[c]; hand_claim = claims; doubt = false :: else fi
            :: else
            fi }
#else
#ifdef NO_FENCE
    :: atomic { !LOST && !in_hand && job == FREE && !ROW_LOCKED ->
#else
    :: atomic { !LOST && !in_hand && job == FREE && !ROW_LOCKED && alive[id[c]] ->
#endif
        at[use].tx = CLAIM; at[use].name = id[c] };
        atomic {
            send_commit(c);
            if
            :: told -> in_hand = true; hand_id = id[c]; hand_claim = claims; doubt = false
            :: else
            fi }
#endif

    /* a claim that finds nothing; what is held and not known of is handed back */
#ifndef NO_DOUBT
    :: atomic { !LOST && !in_hand && doubt && !CLAIM_LOCKED(id[c]) && alive[id[c]] ->
        if :: job == id[c] -> job = FREE :: else fi;
        doubt = at[OTHER].open }             /* not before the session that was left behind has ended */
#endif

    /* settle: guarded, then commit */
#ifdef NO_GUARD
    :: atomic { !LOST && in_hand && !CLAIM_LOCKED(hand_id) && CLAIMED ->
#else
    :: atomic { !LOST && in_hand && !CLAIM_LOCKED(hand_id) && job == hand_id ->
#endif
        at[use].name = hand_id; at[use].claim = hand_claim;
#ifdef BATCHES
        at[use].tx = TAKE_OUT };
        atomic { at[use].tx != TAKE_OUT || !ROW_LOCKED -> if :: at[use].tx == TAKE_OUT -> at[use].tx = SETTLE :: else fi };
#else
        at[use].tx = SETTLE };
#endif
        atomic {
            send_commit(c);
            if :: told -> in_hand = false; doubt = false :: else fi }

    /* refused: lost to somebody, unless an earlier try of this settle happened */
    :: atomic { !LOST && in_hand && !CLAIM_LOCKED(hand_id) && job != hand_id ->
        if
#ifdef NO_ASK
        :: doubt && id[c] == hand_id ->
#else
        :: doubt && id[c] == hand_id && alive[id[c]] ->
#endif
            assert(settled == hand_claim)    /* what is reported as settled is */
        :: else
        fi;
        in_hand = false }

    /* killed: the server sees its session end; or gone with its machine, and the session stays */
    :: atomic { MISHAP && id[1 - c] ->
        mishaps++;
        if
        :: end_session(use)
        :: !at[OTHER].open -> at[use].left = true
        fi;
        id[c] = 0; in_hand = false; doubt = false;
        if
        :: connect(c)        /* started again */
        :: break
        fi }
    od
}

#ifdef LEASE_ONLY
#define FREE_LOCK(i) false
#else
#define FREE_LOCK(i) !LOCK_HELD(i)
#endif
#define DEAD(i) (i < next && alive[i] && (FREE_LOCK(i) || (i != id[0] && i != id[1])))
#define LIVES(i) (i < next && alive[i] && MISHAP)
#define LEFT(i) (!ROW_LOCKED && !CLAIM_LOCKED(i) && job == i && !alive[i] && !gone[i])
#define UNKNOWN(i) (!ROW_LOCKED && !CLAIM_LOCKED(i) && job == i && gone[i])

/* The hearts of all that live, as one: the database lets one at a time declare an owner dead. */
proctype Janitor() {
    do
    :: job == DONE -> break

    /* a look: a lock that is free, or a lease that is over, which for one that lives is a mishap */
    :: atomic {
        if
        :: DEAD(1) -> looked_at = 1 :: DEAD(2) -> looked_at = 2 :: DEAD(3) -> looked_at = 3 :: DEAD(4) -> looked_at = 4
        :: DEAD(5) -> looked_at = 5 :: DEAD(6) -> looked_at = 6 :: DEAD(7) -> looked_at = 7 :: DEAD(8) -> looked_at = 8
        :: LIVES(1) -> mishaps++; looked_at = 1 :: LIVES(2) -> mishaps++; looked_at = 2
        fi };
#ifndef NO_KILL
        atomic { if :: looked_at -> end_sessions_of(looked_at) :: else fi };
#endif
        atomic {
            if
            :: !looked_at                                      /* it came back meanwhile */
#ifdef LOCKING_FENCE
            :: looked_at && BEING_CLAIMED(looked_at)           /* its row is locked: at the next look */
#endif
#ifdef BATCHES
            :: looked_at && BATCH_LOCKED(looked_at)            /* a settle is not committed: at the next look */
#endif
            :: else ->
                alive[looked_at] = false;
                if :: job == looked_at && !ROW_LOCKED -> job = FREE :: else fi;
                gone[looked_at] = (job != looked_at)           /* what somebody has locked is left for the next look */
            fi;
            looked_at = 0 }

    /* what was left */
    :: atomic { CLAIMED && LEFT(job) -> gone[job] = true; job = FREE }
#ifndef NO_SWEEP
    :: atomic { CLAIMED && UNKNOWN(job) -> job = FREE }
#endif
    od
}

/* What arrives late, what the server ends of its own accord, and a server that is started again. */
proctype World() {
    do
    :: job == DONE -> break
    :: atomic { at[0].arriving -> commit(0) }
    :: atomic { at[1].arriving -> commit(1) }
    :: atomic { at[2].arriving -> commit(2) }
    :: atomic { at[3].arriving -> commit(3) }
#ifdef LEASE_ONLY
    :: atomic { at[0].left -> end_session(0) }
    :: atomic { at[1].left -> end_session(1) }
    :: atomic { at[2].left -> end_session(2) }
    :: atomic { at[3].left -> end_session(3) }
#endif
    :: atomic { MISHAP -> mishaps++; end_session(0); end_session(1); end_session(2); end_session(3) }
    od
}

init {
    at[0].tx = NONE; at[1].tx = NONE; at[2].tx = NONE; at[3].tx = NONE;
    atomic { run Consumer(0); run Consumer(1); run Janitor(); run World() }
}

ltl nothing_stays_claimed { [] (CLAIMED -> <> !CLAIMED) }
ltl everything_is_done { <> (job == DONE) }
