"""Finding jobs by their properties: a summary of each block of jobs, and reading the blocks that may match.

Most of the work of a search is ruling jobs out. For each block of 1024 numbers, in the order of arrival, one
row records the names, tags and groups of its jobs, and when they were created; a few narrow rows record when
they finished. That costs a job some nanoseconds, where an index would cost microseconds, and a search for a
rare name reads a few blocks among a million jobs.
"""
