"""What `team` and `runs` are made of: logs, decisions, compaction, and the events of a run with what follows from them."""
