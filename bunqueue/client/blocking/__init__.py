"""The blocking twins of the asynchronous client, made by `scripts/unasync.py`.

Nothing is imported here: who only wants `queue` must not pay for workers, which `group` brings.
"""
