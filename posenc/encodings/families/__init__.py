"""What the encodings of one family share."""
