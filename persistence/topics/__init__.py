"""What `topic_store` and `shared_dir` are made of: names, index lines, topic files, their folder and its lock, and changes."""
