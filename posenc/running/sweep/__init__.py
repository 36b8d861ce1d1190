"""Sweeps: each job is a process of its own, so that one that dies takes no other with it.

`task` is one job as a process, `pool` runs tasks on this machine, `resources` says how many at once, `lines`
words the output, `run` puts a sweep together. Slurm runs the same tasks (posenc.running.slurm).
"""

from posenc.running.sweep.run import run_sweep, sweep_name

__all__ = ["run_sweep", "sweep_name"]
