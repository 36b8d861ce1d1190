"""`python -m posenc` is `posenc`."""

from posenc.cli import main

main()
