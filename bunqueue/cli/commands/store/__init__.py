"""``bunqueue store``: the database that keeps a server's jobs beside its data folder."""
