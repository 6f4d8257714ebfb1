"""A worker: `fetching` jobs, running handlers, renewing `locks` and `reporting` outcomes."""
