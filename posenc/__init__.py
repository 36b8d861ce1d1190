"""posenc: how positional encodings extrapolate in length."""

__version__ = "0.1.0"
