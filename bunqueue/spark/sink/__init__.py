"""Writing: the rows of a DataFrame become jobs.

::

    writer (Spark's classes) ─► task ─► rows: a row as a job, with an id that is the same each time
                                  └───► delivery: batches over TCP, some at a time
    settings: the options         summary: what became of the rows

All but `writer` and `enqueue` knows nothing of Spark. What Spark may do twice, running a task again say, adds
no job twice, as each row has an id that the server knows again.
"""
