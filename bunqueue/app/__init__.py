"""Functions as jobs, and an object with everything needed to add and run them."""
