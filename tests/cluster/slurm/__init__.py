"""Fake Slurm clusters: real slurmctld and slurmd in containers, started by ``tests/cluster/cluster slurm`` or by fixtures."""
