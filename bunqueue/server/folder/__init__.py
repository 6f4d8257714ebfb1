"""The data folder of a server: who may use it, whose a file is, and copies of it."""
