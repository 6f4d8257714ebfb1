"""What `bunqueue store` does with the files of a data folder, while no server uses it: `adopt`, `leave`, and
`verify`, for which a server may run.

Each can be killed at any moment and run again: the jobs are in the folder or in the store, whole.
"""
