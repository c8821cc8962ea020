"""What a fake Slurm cluster consists of: its machines, its nodes, and the configuration written for them.

Machines are containers, nodes are what Slurm knows; ``n-three`` is there so that nobody takes one's name for the other's.
Nothing here asks or starts anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

CONTROLLER = "login"
"""host name of the machine that runs slurmctld; people log in there too"""
FIRST_PORT = 7000
"""of slurmds that share a machine"""
LARGEST_MANY = 512


@dataclass(frozen=True)
class Node:
    """One line NodeName= of slurm.conf."""

    name: str
    machine: str
    cpus: int
    gpus: int = 0
    gpu_type: str = ""
    port: int | None = None
    """None: the node has its machine for itself, and slurmd its usual port"""

    @property
    def gres(self) -> str:
        """As in Gres= of slurm.conf: ``gpu:a100:2``; empty without GPUs."""
        return ":".join(part for part in ("gpu", self.gpu_type, str(self.gpus)) if part) if self.gpus else ""


@dataclass(frozen=True)
class Layout:
    """A fake Slurm cluster.  Its name is part of every container's name and of ClusterName."""

    name: str
    nodes: tuple[Node, ...]
    accounting: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    """lines of slurm.conf that differ from those of every cluster here"""

    @property
    def machines(self) -> tuple[str, ...]:
        """Host names of all containers, the controller's first."""
        return (CONTROLLER, *dict.fromkeys(node.machine for node in self.nodes))

    def node(self, name: str) -> Node:
        """The node of a NodeName."""
        return next(node for node in self.nodes if node.name == name)

    def nodes_on(self, machine: str) -> list[Node]:
        """Those whose slurmd runs on a machine; the controller has none."""
        return [node for node in self.nodes if node.machine == machine]

    def daemons(self, machine: str) -> str:
        """What /opt/daemon starts on a machine, in this order."""
        if machine == CONTROLLER:
            return "munged mariadbd slurmdbd slurmctld" if self.accounting else "munged slurmctld"
        alone = [node for node in self.nodes_on(machine) if node.port is None]
        return "munged slurmd" if alone else " ".join(["munged", *(f"slurmd:{n.name}" for n in self.nodes_on(machine))])


PLAIN = Layout(
    "plain",
    (
        Node("m1", "m1", cpus=2, gpus=2, gpu_type="a100"),
        Node("m2", "m2", cpus=2, gpus=2, gpu_type="a100"),
        Node("n-three", "m3", cpus=1, gpus=1),
    ),
)
TWIN = replace(PLAIN, name="twin")
"""another one of the same kind: two halves of the tests run beside each other"""
ACCOUNTING = Layout(
    "accounting",
    (Node("a1", "a1", cpus=2, gpus=2), Node("a2", "a2", cpus=1, gpus=1)),
    accounting=True,
)


def many(count: int) -> Layout:
    """``count`` pretended nodes p000, p001 and so on, sixteen slurmds to a machine."""
    nodes = [Node(f"p{n:03d}", f"w{n // 16}", cpus=1, port=FIRST_PORT + n % 16) for n in range(count)]
    # Bound to "their" core, the tasks of all nodes would share this machine's first one.
    return Layout("many", tuple(nodes), settings={"TreeWidth": "64", "TaskPlugin": "task/none"})


def files(layout: Layout) -> dict[str, str]:
    """File name below /etc/slurm -> its text."""
    texts = {"slurm.conf": slurm_conf(layout, {}), "gres.conf": _gres_conf(layout)}
    return texts | ({"slurmdbd.conf": _SLURMDBD_CONF} if layout.accounting else {})


def slurm_conf(layout: Layout, changes: dict[str, str]) -> str:
    """Text of slurm.conf; ``changes`` win over the layout's settings."""
    settings = _SETTINGS | {"ClusterName": f"fake-{layout.name}"}
    if layout.accounting:
        settings |= _ACCOUNTING_SETTINGS
    lines = [f"{key}={value}" for key, value in (settings | layout.settings | changes).items()]
    lines += [_node_line(node) for node in layout.nodes]
    everyone = ",".join(node.name for node in layout.nodes)
    lines.append(f"PartitionName=normal Nodes={everyone} Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF")
    low = f"Nodes={everyone} MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE"
    lines.append(f"PartitionName=low {low} GraceTime=5")
    # slurmctld ends a GraceTime when it next looks at time limits, every 30 s.
    lines.append(f"PartitionName=scavenge {low}")
    return "\n".join(["# Written by tests/cluster.", *lines, ""])


_SETTINGS = {
    "SlurmctldHost": CONTROLLER,
    "SlurmUser": "root",
    "AuthType": "auth/munge",
    # How long a requeued job waits before it may start again, 120 s as Slurm comes.
    "AuthInfo": "cred_expire=10",
    "StateSaveLocation": "/var/spool/slurmctld",
    "SlurmdSpoolDir": "/var/spool/slurmd.%n",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.%n.pid",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.%n.log",
    "ProctrackType": "proctrack/linuxproc",
    # Without it faults of binding do not show.
    "TaskPlugin": "task/affinity",
    "MpiDefault": "none",
    "ReturnToService": "2",
    "GresTypes": "gpu",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "DefMemPerCPU": "100",
    # The nodes are as written here, whatever this machine has.
    "SlurmdParameters": "config_overrides",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=3,sched_interval=5",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    # So long has a job that Slurm ends to bring its outputs here, on a swamped machine too.
    "KillWait": "30",
    # A killed node is noticed after this many seconds, 300 as Slurm comes.
    "SlurmdTimeout": "20",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
}
_ACCOUNTING_SETTINGS = {
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "5",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": CONTROLLER,
    "AccountingStorageTRES": "gres/gpu",
}
_SLURMDBD_CONF = f"""\
# Written by tests/cluster.  Root reaches MariaDB through its socket without a password.
AuthType=auth/munge
DbdHost={CONTROLLER}
SlurmUser=root
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
"""


def _node_line(node: Node) -> str:
    words = [f"NodeName={node.name}", f"NodeHostname={node.machine}"]
    words += [f"Port={node.port}"] if node.port else []
    words += [f"CPUs={node.cpus} Sockets=1 CoresPerSocket={node.cpus} ThreadsPerCore=1 RealMemory=2000"]
    words += [f"Gres={node.gres}"] if node.gres else []
    return " ".join([*words, "State=UNKNOWN"])


def _gres_conf(layout: Layout) -> str:
    """GPUs are plain files that /opt/start-slurm makes: a gres without files is dropped by Debian's slurmd."""
    lines = []
    for node in layout.nodes:
        if node.gpus:
            kind = f" Type={node.gpu_type}" if node.gpu_type else ""
            numbers = "0" if node.gpus == 1 else f"[0-{node.gpus - 1}]"
            lines.append(f"NodeName={node.name} Name=gpu{kind} File=/dev/fgpu{numbers}")
    return "\n".join(["# Written by tests/cluster.", *lines, ""])
