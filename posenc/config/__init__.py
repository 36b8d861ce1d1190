"""From the words of a command line to validated settings, through Hydra."""
