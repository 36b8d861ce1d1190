"""Put a comparison into words, as plain text: its facts, the answer, and the notes."""
