"""Workflows as their authors write them: `Flow` for coroutines, `BlockingFlow` for plain functions.

What is shared by both (which step is which, what is recorded, what an answer means) is in `core.py` and
`run_log.py`, without any waiting; `flow.py` and `blocking.py` add that.
"""
