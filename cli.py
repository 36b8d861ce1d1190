"""`python cli.py COMMAND ...` is `posenc COMMAND ...`."""

from posenc.cli import main

main()
