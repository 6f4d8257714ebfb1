"""Which jobs a search means, and where the next page begins: pure, and the same for every surface."""
