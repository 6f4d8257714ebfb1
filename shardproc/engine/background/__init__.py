"""Work that is done in pieces between commands: retention, chores of a tick, slices of long commands."""
