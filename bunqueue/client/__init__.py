"""The SDK. Users import its names from `bunqueue`; the modules here are arranged by subject.

::

    AsyncQueue, Queue ─► caller ─┐                ┌─► pool ─► connection ─► server
    Worker ─► outcomes ──────────┴─► Transport ───┤
       └────► renewal (own thread, own socket)    └─► bunqueue.embedded
"""
