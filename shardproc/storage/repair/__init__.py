"""Reading and saving what is left of a damaged, deleted or contradictory file."""
