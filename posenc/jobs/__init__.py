"""From a command line to jobs: compose, validate, run, and sweep."""
