"""``bunqueue store``: the database that keeps a server's jobs outside its data folder."""
