"""Work done in pieces between commands: retention, the chores of a tick, slices of long commands."""
