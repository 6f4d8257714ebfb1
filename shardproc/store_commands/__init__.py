"""What `bunqueue store` does with the files of a data folder while no server uses it (`adopt`, `leave`), or
even while one runs (`verify`).

Each can be killed at any moment and run again: the jobs are whole, in the folder or in the store.
"""
