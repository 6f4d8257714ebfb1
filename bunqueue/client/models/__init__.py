"""What queries return: jobs, counts and other views. Plain data."""
