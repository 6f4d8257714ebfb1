"""Finds jobs, and changes all that are found.

`plan` decides where to search, `walk` goes there slice by slice, `matching` checks a single job.
"""
