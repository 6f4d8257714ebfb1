"""Reading and salvaging what is left of a damaged, deleted or contradictory file."""
