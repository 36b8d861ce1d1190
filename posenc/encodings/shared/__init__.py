"""What several encodings share, one concept a module."""
