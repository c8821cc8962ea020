"""How a step is asked for, who may call its coordinator, and what srun's complaints mean."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.agent import dial, procs
from launcher.errors import NodeGone
from launcher.model import Command, Host, JobSpec, Node, Plan
from launcher.transports import srun
from launcher.transports import step as step_module
from launcher.transports.callers import listen
from launcher.transports.srun import Order
from launcher.transports.step import Step
from tests.slurm.programs import Programs
from tests.transports.sshd import PATIENCE, held_port

ORDER = Order("7", ("m1", "n-three"), "/opt/python", gpus=3)
PROGRAM = str(Path(__file__).parents[1] / "slurm" / "srun.py")


def test_a_step_has_one_task_a_node_and_no_size_of_its_own() -> None:
    """No -c: the smallest node would decide for all; all GPUs that the job holds; and never a wait without end."""
    words = srun.words(ORDER, "boot")
    assert words[:4] == ["srun", "--jobid=7", "--nodes=2", "--ntasks=2"]
    assert {"--ntasks-per-node=1", "--nodelist=m1,n-three", "--mem=0", "--gpus=3", "--mpi=none"} <= set(words)
    assert {"--kill-on-bad-exit=0", "--wait=0", "--immediate=10"} <= set(words)
    assert words[-3:] == ["/opt/python", "-ISuc", "boot"]
    assert not [word for word in words if word.startswith(("-c", "--cpus", "--gpus-per", "--overlap"))]


def test_a_plan_in_a_step_overlaps_it() -> None:
    """Only there: elsewhere two steps must not share a GPU unnoticed."""
    nodes = (Node(0, Host("a", "a", gpus=2, python="~/py")), Node(1, Host("b", "b", gpus=1, python="~/py")))
    plan = Plan("job", JobSpec(Command(shell="true")), "slurm", "lab", nodes, "none", allocation="7")
    order = srun.order_of(plan, {"SLURM_JOB_ID": "7"})
    assert (order.job, order.nodes, order.gpus, order.overlap) == ("7", ("a", "b"), 3, False)
    assert order.python.endswith("/py") and not order.python.startswith("~")
    assert "--overlap" in srun.words(srun.order_of(plan, {"SLURM_STEP_ID": "0"}), "boot")
    assert not srun.order_of(plan, {"SLURM_STEP_ID": "4294967290"}).overlap


def test_an_image_of_pyxis_is_what_all_tasks_start_in() -> None:
    """With our directory mounted under its own path, and the interpreter of the image."""
    nodes = (Node(0, Host("a", "a", workdir="/shared/home")), Node(1, Host("b", "b", workdir="/shared/home")))
    spec = JobSpec(Command(shell="true"), image="pyxis://nvcr.io#nvidia/pytorch:24.05-py3")
    words = srun.words(srun.order_of(Plan("job", spec, "slurm", "lab", nodes, "none", allocation="7"), {}), "boot")
    place = words.index("--container-image=nvcr.io#nvidia/pytorch:24.05-py3")
    assert words[place + 1] == "--container-mounts=/shared/home:/shared/home"
    assert words[-3:] == ["python3", "-ISuc", "boot"] and place < len(words) - 3
    other = Plan("job", JobSpec(Command(shell="true"), image="docker://t"), "slurm", "lab", nodes, "none", allocation="7")
    assert not [word for word in srun.words(srun.order_of(other, {}), "boot") if "container" in word]


def test_options_and_bindings_of_a_surrounding_step_do_not_reach_srun() -> None:
    """What names the job stays, and everything that is not Slurm's."""
    dropped = (
        "SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_NTASKS", "SLURM_EXPORT_ENV",
        "SLURM_MEM_PER_CPU", "SLURM_STEP_ID", "SLURM_GPUS_PER_TASK", "SLURM_OVERLAP", "SBATCH_EXPORT", "SLURM_JOB_NUM_NODES",
        "SLURM_HINT", "SLURM_EXACT", "SLURM_WAIT", "SALLOC_X", "PMIX_RANK", "SSH_CONNECTION", "SLURMD_NODENAME",
    )  # fmt: skip
    kept = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_JWT", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID", "PATH", "HOME", "NCCL_DEBUG")
    assert set(srun.environment(dict.fromkeys([*dropped, *kept], "x"))) == set(kept)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (["srun: error: Unable to create step for job 7: Requested nodes are busy"], "the nodes were not free within 10 s"),
        (["srun: error: Unable to confirm allocation for job 7: Invalid job id specified"], "the allocation is over"),
        (["slurmstepd-m1: error: execve(): /opt/python: No such file or directory"], "/opt/python cannot be started on the"),
        (["srun: unrecognized option '--container-image=t'"], "its plugin pyxis is missing"),
        (["slurmstepd: error: pyxis: failed to import docker image"], "could not be started: failed to import docker image"),
        (["srun: error: something new"], r"the step ended \(srun's exit status 1\)"),
    ],
)
def test_what_srun_says_becomes_a_sentence(said: list[str], sentence: str) -> None:
    """With its own last words below, and a next step."""
    error = srun.failure(ORDER, 1, said)
    with pytest.raises(NodeGone, match=sentence):
        raise error
    assert error.lines == tuple(said) and error.next_step


def test_slurms_words_for_a_step_without_memory_are_known() -> None:
    """slurmstepd's own, in two generations of Slurm, and srun's of a task."""
    for said in (
        b"slurmstepd: error: Detected 1 oom-kill event(s) in StepId=3.0. Some of your processes may have been killed.",
        b"slurmstepd: error: Detected 1 oom_kill event in StepId=3.0. Some of the step tasks have been OOM Killed.",
        b"srun: error: m1: task 0: Out Of Memory",
    ):
        assert srun.out_of_memory(b"a line\n" + said + b"\n")
    assert not srun.out_of_memory(b"srun: error: m1: task 0: Killed\n")


def test_slurms_words_for_a_cancelled_step_are_known() -> None:
    """Of the step by srun, of the job by its batch step; not what a task says of itself."""
    for said in (b"STEP 39.0 ON n-three CANCELLED AT 2026-11-30T11:55:29 ***", b"JOB 7 ON m1 CANCELLED AT 2026 DUE TO TIME ***"):
        assert srun.is_cancelled(b"slurmstepd-m1: error: *** " + said + b"\n")
    assert not srun.is_cancelled(b"slurmstepd-m1: error: *** STEP 16.0 ON m1 FAILED (non-zero exit code) ***\n")


def test_the_step_in_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch script and Slurm's own steps are none."""
    programs = Programs(tmp_path)
    programs.says("squeue", "7.batch|m1|batch\n7.extern|m1|extern\n7.3|m[1-2]|mine|too\n")
    monkeypatch.setenv("PATH", programs.environ["PATH"])
    error = srun.failure(ORDER, 1, ["srun: error: Unable to create step for job 7: Requested nodes are busy"])
    assert error.what.endswith("step 7.3 (mine|too, on m[1-2]) holds them")


def test_a_program_that_is_not_there_is_no_step() -> None:
    """The same error for every node."""
    step = Step(Order("7", ("a", "b"), sys.executable, program="/no/srun"))
    for node in ("a", "b"):
        with pytest.raises(NodeGone, match="/no/srun cannot be started: No such file or directory"):
            step.transport(Host(node, node))
    step.close()


def test_ports_are_those_that_the_site_opens_for_srun() -> None:
    """A range with no free port is named."""
    with contextlib.ExitStack() as held:
        low, high = two_in_a_row(held)
        with listen((low, high)) as first, listen((low, high)) as second:
            assert {first.getsockname()[1], second.getsockname()[1]} == {low, high}
            with pytest.raises(NodeGone, match=rf"no port of SrunPortRange \({low}-{high}\) is free here"):
                listen((low, high))


def two_in_a_row(held: contextlib.ExitStack) -> tuple[int, int]:
    """Two adjacent ports that nobody else gets meanwhile."""
    while True:
        first = held.enter_context(held_port("::"))
        port: int = first.getsockname()[1]
        with contextlib.suppress(OSError, OverflowError):  # somebody has the next one
            held.enter_context(held_port("::", port + 1))
            return port, port + 1


@pytest.fixture
def step() -> Iterator[Step]:
    made = Step(Order("7", ("here",), sys.executable, program=PROGRAM), addresses=["127.0.0.1"])
    made.transport(Host("here", "here"))
    yield made
    made.close()


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"launcher 00 task/0/here\n" + b"0" * 64 + b"\n", b"x" * 5000, b""])
def test_strangers_are_hung_up_on_and_disturb_nobody(step: Step, words: bytes) -> None:
    """Whoever cannot prove that it knows the secret takes nobody's place."""
    port = step._listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.sendall(words) if words else stranger.shutdown(socket.SHUT_WR)
        told = b""
        try:
            while piece := stranger.recv(4096):
                told += piece
        except ConnectionResetError:
            pass
    assert step._secret.encode() not in told
    channel = step.transport(Host("here", "here")).open(["echo", "up"])
    assert channel.receive(10, PATIENCE) == b"up\n"
    channel.close()


def test_a_signal_to_a_task_that_is_still_calling_is_told_and_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm does not wait with a warning, or with the end of an allocation, until a step has started."""
    heard: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    calling, answer, accept = threading.Event(), threading.Event(), Step._accept

    def slow(self: Step) -> None:
        calling.set()
        answer.wait(PATIENCE)
        accept(self)

    monkeypatch.setattr(Step, "_accept", slow)
    order = Order("1", ("here",), sys.executable, program=PROGRAM)
    made = Step(order, lambda *told: heard.put(told), addresses=["127.0.0.1"], patience=PATIENCE)
    reached = ThreadPoolExecutor(1).submit(made.transport, Host("here", "here"))
    assert calling.wait(PATIENCE) and made._process is not None
    (task,) = procs.children(made._process.pid)
    os.killpg(task, signal.SIGTERM)
    answer.set()
    channel = reached.result(PATIENCE).open(["/bin/sh", "-c", "kill -USR1 $$; kill -TERM $$; echo on"])
    assert heard.get(timeout=PATIENCE) == ("here", "SIGTERM") and heard.empty()
    assert channel.receive(100, PATIENCE) == b"on\n"
    made.close()


def test_a_program_for_which_no_process_is_left_is_refused_and_the_task_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs below the task would be ended with it."""
    said = list[bytes]()
    stub = object.__new__(dial.Stub)
    stub._line, stub._programs = SimpleNamespace(prepare=str, say=said.append), {}

    def none_left() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", none_left)
    before = os.listdir("/proc/self/fd")
    stub._obey(b"open 5 " + b"true".hex().encode())
    assert said == [b"ended 5 - " + b"Resource temporarily unavailable".hex().encode()]
    assert stub._programs == {} and os.listdir("/proc/self/fd") == before


def test_a_machine_that_cannot_be_called_back_has_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor srun, of which each further node would otherwise start one more."""

    def none_left(ports: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(step_module, "listen", none_left)
    made = Step(Order("1", ("here",), sys.executable, program=PROGRAM), addresses=["127.0.0.1"])
    for _ in range(2):
        with pytest.raises(NodeGone, match="cannot be called back: Too many open files"):
            made.transport(Host("here", "here"))
    assert made._process is not None and made._process.returncode == -signal.SIGKILL


def test_a_fault_of_the_thread_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a task hears of it, however much srun has to say."""
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    monkeypatch.setattr(Step, "_accept", lambda self: 1 / 0)
    made = Step(Order("1", ("here",), sys.executable, program=PROGRAM), addresses=["127.0.0.1"])
    with pytest.raises(NodeGone, match="the step ended"):
        made.transport(Host("here", "here"))
    made.close()


def test_a_task_tells_its_secret_to_nobody(step: Step) -> None:
    """An address that is another machine's there may have a listener of somebody else's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        order = {"secret": step._secret, "addresses": ["127.0.0.1"], "port": server.getsockname()[1], "patience": PATIENCE}
        caller = dial.Caller(order, 0)  # type: ignore[no-untyped-call]
        called: list[object] = []
        calling = threading.Thread(target=lambda: called.append(caller.call_anywhere("task/0/here")))  # type: ignore[no-untyped-call]
        calling.start()
        with server.accept()[0] as theirs:
            heard = theirs.recv(4096)
            theirs.sendall(b"00 " + b"0" * 64 + b"\n")
            heard += theirs.recv(4096)
        calling.join(PATIENCE)
    assert called == [None] and step._secret.encode() not in heard and heard.count(b"\n") == 1
