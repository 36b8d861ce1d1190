"""`python train.py ...` and `torchrun train.py ...` are `posenc train ...`."""

from posenc.cli import main

main("train")
