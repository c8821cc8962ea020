"""`launcher exec`: what a task works out alone, how the tasks of a step meet, and what the command then finds.

Tasks are processes of this machine with the environment that srun gives; node 0 is called `localhost`, so that it has an
address without a Slurm.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.slurm import rendezvous
from launcher.slurm.step import Task, task

ROOT = Path(__file__).parents[2]


def environment(rank: int = 0, nodes: int = 1, **changes: str) -> dict[str, str]:
    """What srun gives the task of one node; node 0 is localhost, the others are n1, n2 and so on."""
    names = ["localhost", *(f"n{number}" for number in range(1, nodes))]
    # A cluster of its own for each test, and with it a port: connections of another test may not be quite over.
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    return {
        "SLURM_CLUSTER_NAME": f"lab-{os.getpid()}-{test}",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank),
        "SLURM_STEP_NODELIST": ",".join(names),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})" if nodes > 1 else "1",
        "SLURMD_NODENAME": names[rank],
        **changes,
    }


class Step:
    """Tasks that run `launcher exec`; all are gone at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks: list[subprocess.Popen[str]] = []

    def start(self, environ: dict[str, str], *words: str, program: str = "-m launcher exec") -> subprocess.Popen[str]:
        """One more task."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "LAUNCHER", "CUDA"))}
        started = subprocess.Popen(
            [sys.executable, *program.split(), *words],
            env={**clean, "PYTHONPATH": str(ROOT), **environ},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.tasks.append(started)
        return started

    def run(self, environ: dict[str, str], *words: str, status: int = 0) -> str:
        """A step of one task, to its end; stdout, or stderr of one that failed."""
        out, err = self.start(environ, *words).communicate(timeout=60)
        assert self.tasks[-1].returncode == status, err
        return err if status else out


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Step]:
    """A step without tasks."""
    made = Step(tmp_path)
    yield made
    for one in made.tasks:
        one.kill()
        one.communicate()


def variables(text: str) -> dict[str, str]:
    """The output of `env`."""
    return dict(line.partition("=")[::2] for line in text.splitlines())


def test_a_command_finds_the_environment_of_a_node(step: Step) -> None:
    """PAI's names and ours, folders that are there, and torchrun's place; what it inherited of another job is gone."""
    inherited = {
        "RANK": "5",
        "MASTER_ADDR": "elsewhere",
        "PET_LOG_DIR": "x",
        "PAI_HPS": "{}",
        "LAUNCHER_HOME": "/h",
        "MINE": "kept",
    }
    found = variables(step.run(environment(SLURM_GPUS_ON_NODE="2", SLURM_RESTART_COUNT="3", **inherited), "--", "env"))
    output = step.folder / "output/7"
    expected = {
        "WORLD_SIZE": "1",
        "RANK": "0",
        "NNODES": "1",
        "NODE_RANK": "0",
        "NPROC_PER_NODE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "LAUNCHER_JOB_ID": "slurm-7",
        "LAUNCHER_RESTART_COUNT": "3",
        "PAI_WORKING_DIR": f"{step.folder}/",
        "PAI_CONFIG_DIR": f"{output}/config/",
        "PAI_OUTPUT_MODEL": f"{output}/model/",
        "PAI_OUTPUT_CHECKPOINTS": f"{output}/checkpoints/",
        "PAI_OUTPUT_TENSORBOARD": f"{output}/tensorboard/",
        "PYTHONUNBUFFERED": "1",
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "MINE": "kept",
        "SLURM_JOB_ID": "7",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert 20_000 <= int(found["MASTER_PORT"]) < 30_000 and found["PET_MASTER_PORT"] == found["MASTER_PORT"]
    assert not {"PET_LOG_DIR", "PAI_HPS", "LAUNCHER_HOME", "GLOO_SOCKET_IFNAME"} & set(found)
    assert sorted(path.name for path in output.iterdir()) == ["checkpoints", "config", "model", "tensorboard"]


def test_outputs_go_where_it_is_said(step: Step) -> None:
    """--output-path, from the working directory."""
    found = variables(step.run(environment(), "--output-path", "elsewhere", "env"))
    assert found["PAI_OUTPUT_MODEL"] == f"{step.folder}/elsewhere/model/"


def test_the_command_takes_the_place_of_its_launcher(step: Step) -> None:
    """With its words as they were, and its exit code."""
    assert step.run(environment(), "--", "printf", "%s|", "--nproc", "a b", "$RANK", "--") == "--nproc|a b|$RANK|--|"
    step.run(environment(), "--", "sh", "-c", "exit 7", status=7)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGPIPE", "SIGUSR1"])
def test_signals_are_default_for_the_command(step: Step, name: str) -> None:
    """Whatever was ignored or blocked above it."""
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        told = step.run(environment(), "grep", "-E", "SigIgn|SigBlk", "/proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(number, before)
    assert [int(line.split()[1], 16) & (1 << (number - 1)) for line in told.splitlines()] == [0, 0]


def test_tasks_meet_before_any_command_begins(step: Step) -> None:
    """All have node 0's address and one port; the port is free when the commands begin."""
    listen = "import os,socket; s=socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); s.listen(); print('ok')"
    tasks = [step.start(environment(rank, 3), "env") for rank in (2, 1)]
    time.sleep(0.3)  # they are there before node 0 is, and wait for it
    assert all(one.poll() is None for one in tasks)
    first = step.start(environment(0, 3), "sh", "-c", f'env; exec {sys.executable} -c "{listen}"')
    found = [variables(one.communicate(timeout=60)[0]) for one in (first, *reversed(tasks))]
    assert [one["RANK"] for one in found] == ["0", "1", "2"]
    assert {(one["MASTER_ADDR"].replace("::1", "127.0.0.1"), one["MASTER_PORT"]) for one in found} == {
        ("127.0.0.1", str(rendezvous.port(environment())))
    }
    assert "ok" in found[0] and {one["GLOO_SOCKET_IFNAME"] for one in found} == {"lo"}


def test_a_taken_port_ends_all_and_names_its_holder(step: Step) -> None:
    """With 69, before anything starts; the others find that somebody else answers there."""
    with socket.create_server(("", rendezvous.port(environment())), family=socket.AF_INET) as holder:
        other = step.start(environment(1, 2), "true")
        said = step.run(environment(0, 2), "true", status=69)
        assert f"localhost: port {holder.getsockname()[1]} is taken on this node (held by pid {os.getpid()}," in said
        connection, _ = holder.accept()
        connection.sendall(b"x" * 100)
        connection.close()
        _, err = other.communicate(timeout=60)
    assert other.returncode == 69 and "something else than node 0 of this step answers at" in err


def impatient(folder: Path, seconds: float, after: int = 0) -> str:
    """A launcher whose tasks wait for each other no longer than that; node 0 does once ``after`` others are there."""
    script = folder / f"impatient-{after}.py"
    script.write_text(IMPATIENT.format(seconds=seconds, after=after))
    return str(script)


IMPATIENT = """
from launcher import cli
from launcher.slurm import rendezvous

def arrivals(*given, some=rendezvous._arrivals):
    for _, came in zip(range({after}), some(*given)):
        yield came
    rendezvous.PATIENCE = {seconds}
    yield from some(*given)

if {after}:
    rendezvous._arrivals = arrivals
else:
    rendezvous.PATIENCE = {seconds}
cli.main()
"""


def test_a_node_that_does_not_come_is_named_to_all(step: Step) -> None:
    """Nobody waits longer than it was said."""
    tasks = [step.start(environment(0, 3), "exec", "true", program=impatient(step.folder, 0.5, after=1))]
    tasks.append(step.start(environment(1, 3), "true"))
    for one in tasks:
        _, err = one.communicate(timeout=60)
        assert one.returncode == 69 and "within 0.5 s these did not come to port" in err and "rank 2 (n2)" in err, err


def test_without_node_0_the_others_end_with_a_sentence(step: Step) -> None:
    """... that says what the last try met: there is one, however short the time."""
    one = step.start(environment(1, 2), "exec", "true", program=impatient(step.folder, 0.0))
    _, err = one.communicate(timeout=60)
    assert one.returncode == 69 and "node 0 did not answer at port" in err and "refused" in err.lower(), err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"SLURM_STEP_ID": ""}, "this is no task of an srun step"),
        ({"SLURM_STEP_ID": "4294967291"}, "this is no task of an srun step"),
        ({"SLURM_JOB_ID": ""}, "this is no task of an srun step"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "SLURM_STEP_TASKS_PER_NODE=2(x3): several tasks share a node"),
        ({"SLURM_STEP_TASKS_PER_NODE": "x"}, "SLURM_STEP_TASKS_PER_NODE: 'x' is no list of counts"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST: 'n[1-' is no host list"),
        ({"SLURM_STEP_NUM_NODES": "4"}, "SLURM_STEP_NUM_NODES=4, but SLURM_STEP_NODELIST=localhost has 1 nodes"),
        ({"SLURMD_NODENAME": "n9"}, "SLURMD_NODENAME=n9 is none of the step's nodes"),
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous"),
        (
            {"SLURM_GPUS_PER_NODE": "a100:2", "SLURM_GPUS_ON_NODE": "1"},
            "SLURM_GPUS_PER_NODE=a100:2 was asked for, but this task sees 1",
        ),
        ({"SLURM_GPUS_PER_TASK": "2", "SLURM_GPUS_ON_NODE": "1"}, "SLURM_GPUS_PER_TASK=2 was asked for"),
        ({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0"}, "SLURM_GPUS_ON_NODE=2, CUDA_VISIBLE_DEVICES=0"),
        ({"SLURM_RESTART_COUNT": "x"}, "SLURM_RESTART_COUNT=x is no number"),
    ],
)
def test_where_no_rank_can_be_worked_out_it_is_said(changes: dict[str, str], sentence: str) -> None:
    """And the command that would do."""
    with pytest.raises(UsageError) as caught:
        task(environment(**changes))
    assert sentence in str(caught.value) and caught.value.exit_code == 2


def test_the_rank_is_the_place_in_the_steps_list() -> None:
    """Not in the allocation's, and not SLURM_NODEID, which another distribution counts otherwise."""
    environ = environment(SLURM_STEP_NODELIST="n[2-3],n1", SLURM_STEP_NUM_NODES="3", SLURMD_NODENAME="n1", SLURM_NODEID="0")
    assert task(environ) == Task("7", "0", 0, ("n2", "n3", "n1"), 2, None)


def test_outside_of_a_task_it_exits_with_2(step: Step) -> None:
    """In a sentence, and without a command too."""
    assert "this is no task of an srun step" in step.run({}, "--", "true", status=2)
    assert "there is no command" in step.run(environment(), status=2)


def test_a_program_that_is_not_there_is_said_before_anybody_waits(step: Step) -> None:
    """With the node's name and 69."""
    assert "localhost: there is no nothere on PATH" in step.run(environment(0, 2), "nothere", status=69)
    assert "cannot be started: Permission denied" in step.run(environment(), "/etc/passwd", status=69)


def test_the_port_follows_from_the_step_alone() -> None:
    """Another job, step, restart or cluster has another; a count that is unset is 0; reserved ports win."""
    base = environment()
    others = [{"SLURM_JOB_ID": "8"}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"}, {"SLURM_CLUSTER_NAME": "other"}]
    ports = [rendezvous.port({**base, "SLURM_CLUSTER_NAME": "lab", **changes}) for changes in [{}, *others]]
    assert ports == [rendezvous.port({**base, "SLURM_CLUSTER_NAME": "lab", **changes, "HOST": "x"}) for changes in [{}, *others]]
    assert len(set(ports)) == 5 and all(20_000 <= port < 30_000 for port in ports)
    assert rendezvous.port({**base, "SLURM_RESTART_COUNT": "0"}) == rendezvous.port(base)
    assert rendezvous.port({**base, "SLURM_STEP_RESV_PORTS": "12000-12003"}) == 12_000
    assert rendezvous.port({**base, "SLURM_STEP_RESV_PORTS": "12007,12009"}) == 12_007


@pytest.mark.parametrize("text", ["-", "x-y", "0-3", "99999"])
def test_reserved_ports_that_cannot_be_read_are_an_error(text: str) -> None:
    """Not a port of our own."""
    with pytest.raises(UsageError, match="SLURM_STEP_RESV_PORTS"):
        rendezvous.port({**environment(), "SLURM_STEP_RESV_PORTS": text})


def test_a_node_0_without_an_address_is_an_error_with_all_words(step: Step) -> None:
    """Slurm's and the resolver's; nobody waits for a name that leads nowhere."""
    nowhere = environment(1, 2, SLURM_STEP_NODELIST="no-such-host.invalid,n1", SLURMD_NODENAME="n1")
    said = step.run({**nowhere, "PATH": "/usr/bin:/bin"}, "true", status=69)
    assert "no-such-host.invalid: its address cannot be found" in said and "no scontrol on PATH" in said
