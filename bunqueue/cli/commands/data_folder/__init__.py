"""Commands on the files of a server: copies, repair, another number of shards."""
