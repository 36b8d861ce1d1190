"""Pictures of encodings: measured through their hooks (torch), drawn (matplotlib) or written as text."""
