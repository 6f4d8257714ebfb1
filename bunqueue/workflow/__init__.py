"""Workflows for their authors: `Flow` for coroutines, `BlockingFlow` for plain functions.

The shared part (identifying steps, recording, interpreting answers) is in `core.py` and `run_log.py` and
never waits; `flow.py` and `blocking.py` add the waiting.
"""
