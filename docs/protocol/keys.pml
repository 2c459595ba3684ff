/* Limits and order per key, as small as they can be and still go wrong: the jobs of one key, three consumers.

   What may happen to them, MISHAPS times in all: a claim that was sent is rolled back; a consumer dies with the jobs
   that it holds, which are reclaimed at some moment after that; one that lives is taken for dead, and its late
   outcomes are refused. Jobs may fail, once each: they wait, and are free again.

   Shown: at no moment are more than LIMIT jobs of the key claimed; with -DORDER no job is claimed while one before it
   is not done; at last all jobs are done, while one consumer lives.

   -DORDER          the jobs are done one after the other: LIMIT is 1 then

   `make model` runs it, and again with each rule left out, which must be found out: see tests/protocol/model.py.

   -DCOUNT_FIRST    what is claimed is counted before the key row is locked
   -DNO_KEY_LOCK    the key row is not locked
   -DEARLY_UNLOCK   the key row is unlocked before the claim is committed
   -DANY_JOB        with ORDER: a claim takes any free job, and not the first that is not done */

#ifndef MISHAPS
#define MISHAPS 2
#endif
#ifdef ORDER
#define LIMIT 1
#else
#define LIMIT 2
#endif
#define JOBS 3
#define CONSUMERS 3

#define FREE 0           /* a job, as committed: FREE, WAITS after a failure, DONE, or 1 + the consumer that claimed it */
#define WAITS 254
#define DONE 255

byte job[JOBS];
byte taken[JOBS];        /* its row is locked by the transaction of this consumer, plus 1 */
byte failed[JOBS];
byte key_row;            /* locked by this consumer, plus 1 */
byte claimed;            /* how many are claimed, as committed */
bool dead[CONSUMERS];
byte mishaps;

#define MISHAP (mishaps < MISHAPS)
#define ALL_DONE (job[0] == DONE && job[1] == DONE && job[2] == DONE)
#define HELD_BY(i, c) (job[i] == c + 1)
#define HOLDS(c) (HELD_BY(0, c) || HELD_BY(1, c) || HELD_BY(2, c))
#define IS_FREE(i) (job[i] == FREE && !taken[i])
#ifdef ANY_JOB
#define FIRST(i) true
#else
#ifdef ORDER
#define FIRST(i) ((i == 0 || job[0] == DONE) && (i < 2 || job[1] == DONE))
#else
#define FIRST(i) true
#endif
#endif

inline drop(c) {
    i = 0;
    do :: i < JOBS -> if :: taken[i] == c + 1 -> taken[i] = 0 :: else fi; i++ :: else -> break od;
    if :: key_row == c + 1 -> key_row = 0 :: else fi
}

inline commit(c) {
    i = 0;
    do
    :: i < JOBS ->
        if
        :: taken[i] == c + 1 ->
            assert(job[i] == FREE);
#ifdef ORDER
            assert((i == 0 || job[0] == DONE) && (i < 2 || job[1] == DONE));   /* none before it is open */
#endif
            job[i] = c + 1; claimed++
        :: else
        fi; i++
    :: else -> break
    od;
    assert(claimed <= LIMIT);
    drop(c)
}

proctype Consumer(byte c) {
    byte i, seen, left;
    do
    :: ALL_DONE -> break
    :: dead[c] -> break

    /* claim: lock the key row, if nobody has; count, by a statement that begins then; lock jobs; commit */
#ifdef NO_KEY_LOCK
    :: atomic { !dead[c] && !HOLDS(c) -> seen = claimed };
#else
#ifdef COUNT_FIRST
    :: atomic { !dead[c] && !HOLDS(c) -> seen = claimed };
        atomic { !key_row || dead[c] || ALL_DONE -> if :: !key_row -> key_row = c + 1 :: else fi };
#else
    :: atomic { !dead[c] && !HOLDS(c) && !key_row -> key_row = c + 1 };
        seen = claimed;
#endif
#endif
        left = (seen < LIMIT -> LIMIT - seen : 0);
        atomic {
            i = 0;
            do
            :: i < JOBS ->
                if :: left && IS_FREE(i) && FIRST(i) -> taken[i] = c + 1; left-- :: else fi; i++
            :: else -> break
            od };
#ifdef EARLY_UNLOCK
        atomic { if :: key_row == c + 1 -> key_row = 0 :: else fi };
#endif
        atomic {
            if
            :: dead[c] -> drop(c)                       /* its session was ended with it: rolled back */
            :: !dead[c] -> commit(c)
            :: !dead[c] && MISHAP -> mishaps++; drop(c)
            fi }

    /* settle one that it holds: done, or failed */
    :: atomic { HELD_BY(0, c) -> claimed--; if :: job[0] = DONE :: !failed[0] -> failed[0] = 1; job[0] = WAITS fi }
    :: atomic { HELD_BY(1, c) -> claimed--; if :: job[1] = DONE :: !failed[1] -> failed[1] = 1; job[1] = WAITS fi }
    :: atomic { HELD_BY(2, c) -> claimed--; if :: job[2] = DONE :: !failed[2] -> failed[2] = 1; job[2] = WAITS fi }
    od
}

/* Deaths, reclaims, and the end of a wait. */
proctype World() {
    do
    :: ALL_DONE -> break
    :: atomic { MISHAP && (!dead[1] || !dead[2]) -> mishaps++; if :: !dead[1] -> dead[1] = true :: !dead[2] -> dead[2] = true fi }
    /* reclaimed: of the dead, and, by mistake, of one that lives */
    :: atomic { job[0] > FREE && job[0] < WAITS && (dead[job[0] - 1] || MISHAP) ->
        if :: dead[job[0] - 1] :: else -> mishaps++ fi; job[0] = FREE; claimed-- }
    :: atomic { job[1] > FREE && job[1] < WAITS && (dead[job[1] - 1] || MISHAP) ->
        if :: dead[job[1] - 1] :: else -> mishaps++ fi; job[1] = FREE; claimed-- }
    :: atomic { job[2] > FREE && job[2] < WAITS && (dead[job[2] - 1] || MISHAP) ->
        if :: dead[job[2] - 1] :: else -> mishaps++ fi; job[2] = FREE; claimed-- }
    :: atomic { job[0] == WAITS -> job[0] = FREE }
    :: atomic { job[1] == WAITS -> job[1] = FREE }
    :: atomic { job[2] == WAITS -> job[2] = FREE }
    od
}

init { atomic { run Consumer(0); run Consumer(1); run Consumer(2); run World() } }

ltl everything_is_done { <> ALL_DONE }
