"""From the words of a command line to its jobs: overrides, composition, errors, help, completion."""
