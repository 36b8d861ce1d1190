"""The decoder, its attention and the choice of the attention kernel."""
