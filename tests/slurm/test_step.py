"""A step on a real Slurm: one task a node that starts programs, whichever way it speaks, and nothing left of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from launcher.errors import NodeGone
from launcher.model import Host
from launcher.transports.srun import Order
from launcher.transports.step import Step
from tests.cluster.slurm.handle import SlurmCluster
from tests.jobs.desk import PATIENCE, eventually

Make = Callable[..., Step]
WAYS = {"they call back": None, "through srun": []}
"""how tasks speak with us: addresses to call"""


@pytest.fixture
def job(slurm: SlurmCluster) -> str:
    """A job that holds all of the three nodes."""
    number = slurm.run(slurm.login, "sbatch --parsable --exclusive -N3 -o /dev/null --wrap 'sleep 600'").stdout.strip()
    slurm.run(slurm.login, f"until squeue -h -j {number} -t RUNNING | grep -q .; do sleep 0.1; done")
    return number


@pytest.fixture
def make(slurm: SlurmCluster, job: str, tmp_path: Path) -> Iterator[Make]:
    """Makes steps of that job; srun itself runs on the log-in machine."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nexec " + " ".join(slurm.argv(slurm.login, ["srun"], env={"SLURM_JOB_ID": job})) + ' "$@"\n')
    srun.chmod(0o755)
    made: list[Step] = []

    def step(nodes: tuple[str, ...] = slurm.nodes, heard: Queue[tuple[str, str]] | None = None, **options: object) -> Step:
        order = Order(job, nodes, slurm.python, gpus=5 if len(nodes) == 3 else 2, program=str(srun), immediate=3)
        tell = (lambda *_: None) if heard is None else (lambda *told: heard.put(told))
        made.append(Step(order, tell, environ={"PATH": os.environ["PATH"]}, **options))  # type: ignore[arg-type]
        return made[-1]

    yield step
    for one in made:
        one.close(polite=False)


def output(step: Step, node: str, script: str) -> bytes:
    """What a shell script prints in the task of a node."""
    channel = step.transport(Host(node, node)).open(["sh", "-c", script])
    pieces = []
    while piece := channel.receive(1 << 16, PATIENCE):
        pieces.append(piece)
    status, tail = channel.close()
    assert status == 0, tail
    return b"".join(pieces)


@pytest.mark.parametrize("addresses", WAYS.values(), ids=WAYS)
def test_one_task_on_each_node_with_all_that_the_job_holds_there(
    slurm: SlurmCluster, job: str, make: Make, addresses: None
) -> None:
    """Unequal nodes; one step whatever is started in it; a good-bye ends it, and the job goes on."""
    step = make(addresses=addresses)
    seen = {node: output(step, node, "hostname; nproc; echo $SLURM_GPUS_ON_NODE").split() for node in slurm.nodes}
    assert seen == {"m1": [b"m1", b"2", b"2"], "m2": [b"m2", b"2", b"2"], "n-three": [b"m3", b"1", b"1"]}
    steps = "squeue --noheader --steps --format='%i %j %A'"
    assert slurm.run(slurm.login, steps).stdout.splitlines()[0].startswith(f"{job}.0 launcher")
    assert slurm.run(slurm.login, steps).stdout.count("launcher") == 1
    step.close()
    eventually(lambda: "launcher" not in slurm.run(slurm.login, steps).stdout, "slurmctld has heard that it is over")
    assert slurm.run(slurm.login, f"squeue -h -j {job} -o %T").stdout == "RUNNING\n"


@pytest.mark.parametrize("addresses", WAYS.values(), ids=WAYS)
def test_every_byte_arrives_from_all_nodes_at_once(slurm: SlurmCluster, make: Make, addresses: None) -> None:
    """srun mixes long lines of its tasks; what goes through it all the same comes out whole."""
    step = make(addresses=addresses)
    blocks = {node: os.urandom(300_000) for node in slurm.nodes}
    back: dict[str, bytes] = {}

    def echo(node: str) -> None:
        channel = step.transport(Host(node, node)).open(["cat"])
        channel.send(blocks[node])
        channel.finish()
        pieces = []
        while piece := channel.receive(1 << 16, PATIENCE):
            pieces.append(piece)
        back[node] = b"".join(pieces)
        assert channel.close() == (0, b"")

    threads = [threading.Thread(target=echo, args=(node,)) for node in slurm.nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert back == blocks


@pytest.mark.parametrize("addresses", WAYS.values(), ids=WAYS)
def test_hanging_up_ends_whatever_was_started(slurm: SlurmCluster, make: Make, addresses: None) -> None:
    """Also what left its session, its parent and its environment, and what takes no notice of TERM."""
    step = make(("m1", "n-three"), addresses=addresses)
    for node in ("m1", "n-three"):
        output(step, node, "trap '' TERM; setsid env -i sleep 301 >/dev/null 2>&1 & (sleep 302 >/dev/null 2>&1 &) ; echo")
    channel = step.transport(Host("m1", "m1")).open(["sleep", "303"])
    step.close(polite=False)
    assert channel.close() == (None, b"")
    for node in ("m1", "n-three"):
        # The batch script of the job sleeps for 600 s.
        left = [one for one in slurm.leftovers(node) if one.argv[0] == "sleep" and one.argv[1:] != ("600",)]
        assert not [one for one in left if one.state != "Z"], left


def test_a_signal_to_the_step_is_told_and_outlived(slurm: SlurmCluster, job: str, make: Make) -> None:
    """Slurm sends TERM to every process of a job that it ends; who stays can still tell what became of them."""
    heard: Queue[tuple[str, str]] = Queue()
    step = make(heard=heard)
    assert [output(step, node, "echo up") for node in slurm.nodes] == [b"up\n"] * 3
    slurm.run(slurm.login, ["scancel", "--signal=TERM", f"{job}.0"])
    told = set()
    while told != {(node, "SIGTERM") for node in slurm.nodes}:
        told.add(heard.get(timeout=PATIENCE))
    assert output(step, "m2", "echo still here") == b"still here\n"


@pytest.mark.parametrize("killed", ["kill -9 $PPID", "kill -9 $(cut -d\" \" -f4 /proc/$PPID/stat)"], ids=["itself", "its parent"])
def test_a_task_that_dies_is_gone_and_the_others_go_on(slurm: SlurmCluster, make: Make, killed: str) -> None:
    """No connection can come back to it, and nothing of it runs on."""
    step = make()
    channel = step.transport(Host("m2", "m2")).open(["sh", "-c", f"{killed}; exec cat"])
    while channel.receive(10, PATIENCE):
        pass
    end = time.monotonic() + PATIENCE
    with pytest.raises(NodeGone, match="m2: its task ended"):
        while time.monotonic() < end:
            step.transport(Host("m2", "m2")).open(["true"]).close()
    assert output(step, "m1", "echo up") == b"up\n"


def test_another_step_in_the_way_is_named(slurm: SlurmCluster, job: str, make: Make) -> None:
    """Instead of a wait without end."""
    first = make()
    assert output(first, "m1", "echo up") == b"up\n"
    step = make()
    with pytest.raises(NodeGone, match="the nodes were not free within 3 s") as raised:
        step.transport(Host("m1", "m1"))
    assert "Requested nodes are busy" in str(raised.value)


def test_an_interpreter_that_is_not_there_is_named(slurm: SlurmCluster, make: Make) -> None:
    """In one sentence for all nodes, the same error for each."""
    step = make()
    step._order = Order(**{**vars(step._order), "python": "/no/such/python"})
    errors = []
    for node in ("m1", "m2"):
        with pytest.raises(NodeGone, match="/no/such/python cannot be started on the nodes: No such file or directory") as raised:
            step.transport(Host(node, node))
        errors.append(raised.value)
    assert errors[0] is errors[1]
