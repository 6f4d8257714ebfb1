"""Which jobs a search selects, and where the next page begins.  Pure, and the same for every interface."""
