"""How fast the launcher is, beside its rivals, in one run: `python -m benchmarks` (see `make bench`)."""
