"""`python eval.py run=DIR ...` is `posenc eval run=DIR ...`."""

from posenc.cli import main

main("eval")
