"""What tests of running servers share: a wire client of their own, the server as a process, bookkeeping."""
