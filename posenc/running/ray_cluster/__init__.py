"""Run sweeps on a Ray cluster (`hydra/launcher=ray`), by Ray's core API.

`launch` is the side of the command that waits, `node` what Ray's workers run. `returned_folder` brings a run
back from a node that does not see the run directories. Only a command line goes to a node.
"""
