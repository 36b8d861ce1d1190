"""What the other commands of `posenc` do: bench, check, compare, data, runs, show and the rest."""
