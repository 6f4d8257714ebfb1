"""The states of a job.  No other code assigns ``job.state``.

::

    push ──► WAITING ──pull──► ACTIVE ──ack──► COMPLETED
      │         ▲  ▲             │ │
      ├► DELAYED┘  └──release────┘ └─fail─► DELAYED (retry) or FAILED (dead letter) ──retry──► WAITING
      └► BLOCKED ──dependencies done──► WAITING or DELAYED
    ACTIVE ──its workflow waits──► SUSPENDED ──signal, child or time──► WAITING

A live job is in exactly one place, given by its state: the ready jobs of its queue (WAITING), the heap of
delays (DELAYED), the active jobs, with a lock (ACTIVE), the blocked ones (BLOCKED), or the suspended ones
(SUSPENDED), which are also in the heap of delays unless they wait for ever.  COMPLETED and FAILED jobs are
finished: they live in the file only, and memory has counts of them.  REMOVED is the end.

A workflow that should become FAILED, and has steps that can be undone, becomes WAITING first (`begin_undo`).

Whether a job that is neither active nor blocked is WAITING or DELAYED depends only on its ``run_at``:
`transitions.enqueue` decides.

Each move updates everything that depends on the state: the indexes of the queue, its counters, the unique
key, the lock, the row to write and the event.  A move that is not in this table is a bug.
`bunqueue.model.job.TRANSITIONS` has the same moves as data, and a test compares the two.

========= ========= ================================================= ========================================
From      To        When                                              Function
========= ========= ================================================= ========================================
(none)    WAITING   push                                              transitions.add,
                                                                      transitions.add_new,
                                                                      transitions.add_many_new
(none)    DELAYED   push with a delay                                 the same
(none)    BLOCKED   push with dependencies                            transitions.add_blocked
WAITING   ACTIVE    pull                                              transitions.activate
WAITING   DELAYED   moved by hand                                     transitions.move
WAITING   COMPLETED late ack with the token of a lock that was lost   transitions.complete
WAITING   FAILED    discarded by hand; a workflow or flow: cancelled  transitions.discard,
                                                                      transitions.cancel_begun
WAITING   REMOVED   cancelled, drained, or its ttl is over            transitions.remove, transitions.expire
WAITING   BLOCKED   gets children                                     transitions.block
DELAYED   WAITING   its time has come, or moved by hand               transitions.due, transitions.move
DELAYED   FAILED    discarded by hand; a workflow or flow: cancelled  transitions.discard,
                                                                      transitions.cancel_begun
DELAYED   REMOVED   cancelled, drained                                transitions.remove
DELAYED   BLOCKED   gets children                                     transitions.block
ACTIVE    COMPLETED ack                                               transitions.complete
ACTIVE    WAITING   its holder is gone or stalled, or moved by hand   transitions.release, transitions.stall,
                                                                      transitions.interrupt,
                                                                      transitions.take_back, transitions.move
ACTIVE    WAITING   a workflow has to be undone before it ends        transitions.begin_undo
ACTIVE    DELAYED   failed with attempts left, or moved by hand       transitions.fail, transitions.move
ACTIVE    DELAYED   a workflow sleeps                                 transitions.suspend
ACTIVE    SUSPENDED a workflow waits for signals or children          transitions.suspend
ACTIVE    FAILED    no attempt left, too many stalls, cancelled       transitions.dead_letter
ACTIVE    REMOVED   as COMPLETED or FAILED, with remove_on_...        transitions.complete,
                                                                      transitions.dead_letter
ACTIVE    BLOCKED   its worker waits for its children                 transitions.block_active
SUSPENDED WAITING   a signal, a child or its time has come            transitions.wake, transitions.due
SUSPENDED FAILED    cancelled, or discarded by hand                   transitions.cancel_begun,
                                                                      transitions.discard
SUSPENDED REMOVED   its queue is obliterated, or it is removed        transitions.remove
BLOCKED   WAITING   its last dependency is done                       transitions.unblock
BLOCKED   DELAYED   the same, before its time has come                transitions.unblock
BLOCKED   FAILED    a child failed without which it cannot run        transitions.fail_blocked
BLOCKED   FAILED    its flow is cancelled                             transitions.cancel_begun
BLOCKED   REMOVED   cancelled, drained                                transitions.remove
COMPLETED WAITING   RetryCompleted                                    transitions.revive
COMPLETED BLOCKED   RetryFlow                                         transitions.revive
COMPLETED REMOVED   retention, Clean                                  removal
FAILED    WAITING   RetryDlq, or an automatic retry                   transitions.revive
FAILED    BLOCKED   RetryFlow                                         transitions.revive
FAILED    WAITING   a cancelled workflow has to be undone first       transitions.begin_undo
FAILED    REMOVED   retention, PurgeDlq                               removal
========= ========= ================================================= ========================================

After a restart `transitions.enqueue`, `recovery.recover_active`, `transitions.recover_blocked` and
`transitions.recover_suspended` put each stored job back where it was.  A shard applies one command after
another, so no two moves of a job ever race.
"""
