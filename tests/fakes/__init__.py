"""Small hand-written stand-ins for parts that a test is not about."""
