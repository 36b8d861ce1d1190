"""From the jobs of a command line to finished runs: one in this process, a sweep as processes, a launcher."""
