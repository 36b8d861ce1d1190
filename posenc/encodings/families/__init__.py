"""What several encodings share: absolute rows, rotations, learned biases, attention by content."""
