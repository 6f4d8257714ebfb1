"""Writing: the rows of a DataFrame become jobs.

::

    writer (Spark's classes) ─► task ─► rows: a row as a job, with an id that is the same each time
                                  └───► delivery: batches over TCP, some at a time
    settings: the options         summary: what became of the rows

Only `writer` and `enqueue` depend on Spark. If Spark does something twice, such as running a task again, no
job is added twice, because each row has an id that the server recognizes.
"""
