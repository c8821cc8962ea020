"""Launcher: one training job on your own machines, over SSH or on this one.  The command line is `python -m launcher`."""
