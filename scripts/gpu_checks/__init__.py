"""The parts of scripts/check_gpu.py."""
