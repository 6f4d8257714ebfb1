"""What a process of a server needs of its machine: descriptors, permissions, systemd, processes."""
