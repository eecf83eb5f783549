"""What `doctor` is made of: what it looks for, room by room, and what it finds."""
