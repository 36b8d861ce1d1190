"""The training loop, its optimizer, precision and checkpoints."""
