"""The commands, one module per subject.  Changes of a job's state are in `lifecycle`."""
