"""Finding jobs, and changing all that are found.

`plan` decides where to look, `walk` goes there slice by slice, `matching` looks at one job.
"""
