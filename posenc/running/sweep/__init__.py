"""Run sweeps. Each job is a process of its own, so that a job that dies takes no other with it.

`task` describes one job as a process, `process` starts it, `task_queue` says which begins next, `pool` runs
tasks on this machine, `resources` says how many at once, `time_left` how long they take, `lines` words the
output, `run` puts a sweep together.
Slurm and Ray run the same tasks (posenc.running.slurm, posenc.running.ray_cluster).
"""

from posenc.running.sweep.run import run_sweep, sweep_name

__all__ = ["run_sweep", "sweep_name"]
