"""The charts of comparisons, one a file, and what they share."""
