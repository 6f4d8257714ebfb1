"""The front process: client connections in, shard processes behind.  It forwards, it decides nothing."""
