"""What `context` is made of: the tree of entries, what a model gets of it, and older versions of the file."""
