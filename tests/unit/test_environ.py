"""The command's environment: PAI's names, what goes along, what must not, and who wins."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher import environ
from launcher.environ import DROPPED, MASK, Place, forwarded, is_secret, local_gpus, masked, orders, processes
from launcher.model import Command, Host, JobSpec, Node, Plan

FACTS: dict[str, Any] = {"job_dir": "/w/node/jobs/j", "gpu_ids": [], "gpus": 0}


def plan(nodes: int = 2, backend: str = "ssh", nproc: int | None = None, **host: Any) -> Plan:
    hosts = [Host(name=f"h{rank}", address=f"a{rank}", **host) for rank in range(nodes)]
    spec = JobSpec(command=Command(shell="true"), nproc_per_node=nproc)
    nodes_ = tuple(Node(rank, one) for rank, one in enumerate(hosts))
    return Plan(job_id="job-1", spec=spec, backend=backend, cluster="lab", nodes=nodes_, project="p")


def made(rank: int = 1, user: dict[str, str] | None = None, facts: dict[str, Any] | None = None, **kind: Any) -> environ.Orders:
    whole = plan(**kind)
    place = Place({**FACTS, **(facts or {})}, 4, "eth1")
    return orders(whole, whole.nodes[rank], place, ("10.0.0.1", 23456), user or {}, {"PET_REDIRECTS": "3"})


def test_every_name_of_the_contract_is_set() -> None:
    """The table of PAI's variables, then ours."""
    assert made().settings == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "NPROC_PER_NODE": "4",
        "PAI_WORKING_DIR": "/w/node/jobs/j/code/",
        "PAI_CONFIG_DIR": "/w/node/jobs/j/input/config/",
        "PAI_OUTPUT_MODEL": "/w/node/jobs/j/output/model/",
        "PAI_OUTPUT_CHECKPOINTS": "/w/node/jobs/j/output/checkpoints/",
        "PAI_OUTPUT_TENSORBOARD": "/w/node/jobs/j/output/tensorboard/",
        "NODE_RANK": "1",
        "NNODES": "2",
        "LAUNCHER_JOB_ID": "job-1",
        "LAUNCHER_RESTART_COUNT": "0",
    }


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "PET_NNODES",
        "NODE_RANK",
        "PAI_HPS",
        "SSH_CLIENT",
    ],
)
def test_what_speaks_of_another_job_is_dropped(name: str) -> None:
    """A node's own leftovers of a torchrun or a job never reach the command, nor do they go along from here."""
    assert environ._matches(name, DROPPED)
    assert forwarded({name: "1"}, [name, "*"]) == {}


def test_an_allow_list_goes_along_unasked() -> None:
    """Tuning goes along; whatever names a place on this machine does not."""
    here = {
        "NCCL_DEBUG": "INFO", "GLOO_X": "1", "TORCH_LOGS": "all", "CUDA_LAUNCH_BLOCKING": "1",
        "OMP_NUM_THREADS": "3", "HF_TOKEN": "t",
        "WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "0", "HF_HOME": "/h",
        "CUDA_HOME": "/c", "CUDA_PATH": "/c", "WANDB_DIR": "/w",
        "TORCH_EXTENSIONS_DIR": "/t", "NCCL_ROOT": "/n", "HF_DATASETS_CACHE": "/d", "EDITOR": "vi", "LD_LIBRARY_PATH": "/l",
    }  # fmt: skip
    assert sorted(forwarded(here, [])) == sorted(list(here)[:7])


def test_forward_env_takes_along_what_it_names() -> None:
    """Even what speaks of this machine, when a person asks for it by name or pattern."""
    here = {"CUDA_VISIBLE_DEVICES": "0", "HF_HOME": "/h", "MY_A": "1", "MY_B": "2", "OTHER": "3"}
    assert forwarded(here, ["CUDA_VISIBLE_DEVICES", "HF_HOME", "MY_*"]) == {k: v for k, v in here.items() if k != "OTHER"}


@pytest.mark.parametrize("name", ["HOME", "PATH", "PWD", "SSH_AUTH_SOCK", "SLURM_JOB_ID", "SHELL", "XDG_RUNTIME_DIR", "_"])
def test_some_names_no_pattern_takes_along(name: str) -> None:
    """They would be wrong on any other machine."""
    assert forwarded({name: "x"}, ["*", name]) == {}


@pytest.mark.parametrize("name", ["API_KEY", "hf_token", "MY_SECRET_1", "DB_PASSWORD", "AWS_ACCESS_KEY_ID", "Credentials"])
def test_secret_names_are_known_whatever_their_case(name: str) -> None:
    """Their values are masked wherever they are shown."""
    assert is_secret(name)
    assert masked({name: "s3cret", "LR": "1"}) == {name: MASK, "LR": "1"}


def test_a_plain_name_is_shown() -> None:
    """Masking everything would help nobody."""
    assert not is_secret("NCCL_DEBUG")


def test_the_interface_that_carried_the_probe_is_a_default() -> None:
    """gloo and NCCL get it on every node of a job of several; the node's own or the user's choice wins."""
    told = made()
    assert (told.defaults["GLOO_SOCKET_IFNAME"], told.defaults["NCCL_SOCKET_IFNAME"]) == ("eth1", "eth1")
    assert "GLOO_SOCKET_IFNAME" not in told.settings
    chosen = made(user={"NCCL_SOCKET_IFNAME": "ib0"})
    assert chosen.settings["NCCL_SOCKET_IFNAME"] == "ib0" and "NCCL_SOCKET_IFNAME" not in chosen.defaults
    assert chosen.defaults["GLOO_SOCKET_IFNAME"] == "eth1"


def test_a_job_of_one_node_names_no_interface() -> None:
    """Nothing was probed, so nothing is known."""
    assert "GLOO_SOCKET_IFNAME" not in made(rank=0, nodes=1).defaults


def test_a_users_values_win_over_defaults_and_not_over_the_contract() -> None:
    """PET_ and PYTHON settings are the user's to change; RANK is not (planning refuses it with a sentence)."""
    told = made(user={"PYTHONUNBUFFERED": "0", "PET_REDIRECTS": "0", "LR": "0.1", "RANK": "7"})
    assert (told.settings["PYTHONUNBUFFERED"], told.settings["PET_REDIRECTS"], told.settings["LR"]) == ("0", "0", "0.1")
    assert told.settings["RANK"] == "1" and not {"PYTHONUNBUFFERED", "PET_REDIRECTS"} & set(told.defaults)


def test_outside_of_simulated_nodes_gpus_are_the_nodes_own() -> None:
    """A real node's CUDA_VISIBLE_DEVICES is left as it is."""
    assert "CUDA_VISIBLE_DEVICES" not in made(facts={"gpu_ids": ["0", "1"]}).settings


def test_a_simulated_node_gets_its_slice_unless_the_user_says() -> None:
    """Two simulated nodes never meet on one GPU."""
    facts = {"gpu_ids": ["0", "1", "2"]}
    slices = [made(rank=rank, facts=facts, backend="local").settings["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)]
    assert slices == ["0,1", "2"]
    assert made(facts=facts, backend="local", user={"CUDA_VISIBLE_DEVICES": "5"}).settings["CUDA_VISIBLE_DEVICES"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in made(backend="local").settings


@pytest.mark.parametrize(
    ("ids", "nodes", "shares"),
    [
        ("0123", 2, ["01", "23"]),
        ("01234", 3, ["01", "23", "4"]),
        ("01", 3, ["0", "1", ""]),
        ("", 2, ["", ""]),
        ("37", 1, ["37"]),
    ],
)
def test_shares_are_contiguous_fair_and_disjoint(ids: str, nodes: int, shares: list[str]) -> None:
    """Every GPU belongs to exactly one simulated node."""
    assert ["".join(local_gpus(list(ids), rank, nodes)) for rank in range(nodes)] == shares


def test_nodes_may_be_unequal() -> None:
    """Each node starts what its own GPUs, or its slots, say."""
    whole = plan(3)
    hosts = [
        dataclasses.replace(node.host, **said) for node, said in zip(whole.nodes, ({"gpus": 8}, {"slots": 3}, {}), strict=True)
    ]
    counts = [processes(whole, Node(rank, host), {"gpus": 2}) for rank, host in enumerate(hosts)]
    assert counts == [8, 3, 2]


@pytest.mark.parametrize(
    ("host", "nproc", "facts", "count"),
    [
        ({"gpus": 8}, 2, {"gpus": 4}, 2),
        ({"slots": 3, "gpus": 8}, None, {"gpus": 4}, 3),
        ({"gpus": 0}, None, {"gpus": 4}, 1),
        ({}, None, {"gpus": 0}, 1),
        ({}, None, {"gpus": 4}, 4),
    ],
)
def test_the_users_number_then_slots_then_gpus_then_one(
    host: dict[str, int], nproc: int | None, facts: dict[str, int], count: int
) -> None:
    """In that order."""
    whole = plan(1, nproc=nproc, **host)
    assert processes(whole, whole.nodes[0], facts) == count


def test_auto_on_simulated_nodes_counts_the_slice() -> None:
    """Three GPUs on two simulated nodes are two and one processes."""
    whole = plan(2, backend="local")
    assert [processes(whole, node, {"gpu_ids": ["0", "1", "2"]}) for node in whole.nodes] == [2, 1]
