"""The front process: accepts client connections and forwards their commands to the shard processes. It
decides nothing."""
