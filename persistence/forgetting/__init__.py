"""What `forget` is made of: what can be forgotten, the words by which copies are recognised, and taking them out."""
