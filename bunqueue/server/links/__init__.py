"""What the processes of a server send each other: every message, once."""
