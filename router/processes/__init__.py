"""How the processes of a server are started and kept running, and what is known of their ends."""
