"""The replicated log: what a batch changed, as a record; who may append it; how a file is built from it.

No engine and no command belongs here.  Records hold effects on the file, so two versions of the engine may
write and read one log.
"""
