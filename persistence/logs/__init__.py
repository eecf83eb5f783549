"""What `log` is made of: the index of a log, what a change comes to, and commits in groups."""
