"""Where documents come from: one file a kind, named in `data.source`, each with a `read` function."""
