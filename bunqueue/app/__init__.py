"""Functions as jobs, and an object that holds all one needs to add and to run them."""
