"""Commands for the files of a server: copy, repair, change the number of shards."""
