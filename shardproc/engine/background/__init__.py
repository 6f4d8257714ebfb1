"""Work done in pieces between commands: retention, what is due in a tick, slices of long commands."""
