"""What became of jobs, as the server hears it: results, failures and steps, said until it has answered."""
