"""The replicated log: the changes of a batch as a record, ownership of the log, and building a file from it.

No engine and no command belongs here. Records hold effects on the file, so two versions of the engine may
write and read one log.
"""
