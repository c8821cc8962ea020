"""The words that go to torchrun, and those a person gives it."""

from __future__ import annotations

import pytest

from launcher.torchrun import command_line, empty_master_hint, nproc_in, settings, unplaced, uses_launcher

PAI = (
    "torchrun --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT --nnodes=$WORLD_SIZE --node_rank=$RANK "
    "--nproc_per_node=2 train_multinode.py --total_epochs 10 --save_every 5"
)
PAI_LAUNCH = PAI.replace("torchrun", "python -m torch.distributed.launch")


def command(script: list[str], address: str = "10.0.0.1") -> list[str]:
    return command_line(script, "/opt/venv/bin/python", master_addr=address, master_port=23456, nnodes=4, node_rank=3, nproc=8)


def test_a_script_becomes_a_torchrun_command_with_static_rendezvous() -> None:
    """The script's own words stand behind `--`, untouched."""
    words = ["train.py", "--r", "-4C", "", "--", "it's\n$HOME", "--nnodes=9"]
    assert command(words) == [
        *("/opt/venv/bin/python", "-m", "torch.distributed.run", "--nnodes=4", "--node_rank=3", "--nproc_per_node=8"),
        *("--master_addr=10.0.0.1", "--master_port=23456", "--", *words),
    ]


def test_a_module_is_torchruns_own_dash_m() -> None:
    """`-m package.train` keeps its meaning."""
    assert command(["-m", "package.train", "-m", "x"])[-5:] == ["-m", "--", "package.train", "-m", "x"]


def test_an_ipv6_address_is_bracketed_once() -> None:
    """torchrun joins address and port with a colon."""
    assert "--master_addr=[fd00::1]" in command(["t.py"], "fd00::1")
    assert "--master_addr=[fd00::1]" in command(["t.py"], "[fd00::1]")


@pytest.mark.xdist_group("torch")  # one process of tests loads it
@pytest.mark.torch
def test_torchruns_parser_gives_the_script_its_words_back() -> None:
    """What torchrun makes of our command is what the person wrote, ambiguous, empty and strange words included."""
    import contextlib

    with contextlib.suppress(Warning):
        from torch.distributed.run import parse_args
    words = ["train.py", "--r", "-4C", "", "--", "it's\n$HOME ünï *", "--nnodes=9", "-m", "--local_rank=1"]
    parsed = parse_args(command(words, "fd00::1")[3:])
    assert [parsed.training_script, *parsed.training_script_args] == words
    assert (parsed.nnodes, parsed.node_rank, parsed.nproc_per_node, parsed.master_port) == ("4", 3, "8", 23456)
    module = parse_args(command(["-m", "p.train", "--r", "1"])[3:])
    assert (module.module, module.training_script, module.training_script_args) == (True, "p.train", ["--r", "1"])


def test_the_settings_are_defaults_of_torchruns_flags() -> None:
    """The grace is a whole number of seconds, rounded up, since torchrun reads it with int()."""
    found = settings(12.3, "/w/ranks")
    assert found["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "13"
    assert (found["PET_LOG_DIR"], found["PET_REDIRECTS"], found["PYTHONUNBUFFERED"]) == ("/w/ranks", "3", "1")
    assert settings(-1, "/w")["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "0"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (PAI, 2),
        (PAI_LAUNCH, 2),
        ("torchrun --nproc-per-node 4 t.py", 4),
        ("torchrun \\\n  --nproc_per_node \\\n  8 t.py", 8),
        ('torchrun --nproc_per_node="2" t.py', 2),
        ("cd x && torchrun --nproc_per_node=2; echo", 2),
        ("torchrun --nproc_per_node=gpu t.py", None),
        ("torchrun --nproc_per_node auto t.py", None),
        ("torchrun --nproc_per_node=$NPROC_PER_NODE t.py", None),
        ("torchrun --nproc_per_node=2 a.py; torchrun --nproc_per_node=4 b.py", None),
        ("torchrun --nproc_per_node=", None),
        ("python t.py --my-nproc_per_node=3", None),
        ("python t.py", None),
    ],
)
def test_processes_per_node_of_a_verbatim_command(text: str, count: int | None) -> None:
    """A plain number is understood however it is written; everything else is left to the node."""
    assert nproc_in(text) == count


@pytest.mark.parametrize(
    ("started", "answer"),
    [
        (PAI, True),
        (PAI_LAUNCH, True),
        ("export A=1; /opt/venv/bin/torchrun t.py", True),
        ("python -um torch.distributed.run t.py", True),
        ("python \\\n -m \\\n torch.distributed.launch t.py", True),
        ("accelerate launch t.py", True),
        ("deepspeed t.py", True),
        ("bash -c 'torchrun t.py'", True),
        (["torchrun", "t.py"], True),
        (["env", "A=1", "python", "-m", "torch.distributed.run", "t.py"], True),
        ("python t.py --strategy deepspeed --x", False),
        ("python t.py --engine accelerate", False),
        ("python t.py torch.distributed.run", False),
        (["python", "t.py"], False),
        ("", False),
    ],
)
def test_whether_a_command_numbers_its_processes(started: str | list[str], answer: bool) -> None:
    """A plain `python` sees the node's RANK; the known launchers give every process its own."""
    assert uses_launcher(started) is answer


@pytest.mark.parametrize(
    "argv",
    [
        ["torchrun", "--master_addr=", "--master_port=", "t.py"],
        ["torchrun", "--master_addr=10.0.0.1", "--node_rank=", "t.py"],
        ["python", "-m", "torch.distributed.launch", "--master-addr", "--master-port", "t.py"],
    ],
)
def test_an_address_that_the_shell_here_took_away_is_named(argv: list[str]) -> None:
    """$MASTER_ADDR in double quotes or none is empty on the submitting side."""
    assert "--command '...'" in (empty_master_hint(argv) or "")


def test_a_complete_command_needs_no_hint() -> None:
    """Neither torchrun with all its values nor a script's own empty option is complained about."""
    assert empty_master_hint(["torchrun", "--master_addr=10.0.0.1", "--nnodes", "2", "t.py", "--name="]) is None
    assert empty_master_hint(["python", "t.py", "--master_addr="]) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (PAI, False),
        (PAI_LAUNCH, False),
        ("torchrun train.py", True),
        ("cd x && /opt/t/bin/torchrun --nnodes=2 train.py", True),
        ("python -m torch.distributed.run --nnodes 2 train.py", True),
        ("torchrun --standalone train.py", False),
        ("torchrun --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py", False),
        ("PET_NODE_RANK=$RANK torchrun train.py", False),
        ("bash my-torchrun.sh", False),
        ("pip install torchrun-x && python train.py", False),
        ("python train.py", False),
    ],
)
def test_a_torchrun_that_does_not_know_its_node(text: str, answer: bool) -> None:
    """Every node would take itself for the first."""
    assert unplaced(text) is answer
