"""The settings of a server: from flags, environment and a file."""
