"""Simulate what posenc says, and hold it against the truth."""
