"""What the processes of a server share. Nothing in a client needs it."""
