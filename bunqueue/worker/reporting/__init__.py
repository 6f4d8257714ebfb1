"""Reports outcomes of jobs to the server: results, failures and steps, repeated until it has answered."""
