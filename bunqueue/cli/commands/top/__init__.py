"""`bunqueue top`: the numbers, the screen and its keys."""
