"""The parts of a visit to a GPU, which scripts/check_gpu.py makes in one call."""
