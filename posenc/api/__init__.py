"""Use posenc from Python: runs as objects, collections of runs, and the jobs of the commands as functions."""
