"""The fake cluster: real sshd in containers, started by ``tests/cluster/cluster`` or by the ``cluster`` fixture."""
