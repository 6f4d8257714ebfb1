"""Finding jobs by what they are: what is known of each block of jobs, and the reading of those that remain.

Most of the work of a search is to leave jobs out.  For each block of 1024 numbers, in the order of arrival,
one row says which names, tags and groups its jobs have, and when they were created; a few narrow ones say
when they finished.  That costs a job some nanoseconds where an index would cost microseconds, and a search
for a rare name looks at a few blocks of a million jobs.
"""
