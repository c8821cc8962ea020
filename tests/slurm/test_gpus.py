"""GPUs in Slurm's words."""

from __future__ import annotations

import pytest

from launcher.slurm import gpus
from launcher.slurm.gpus import Gpus


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("4", Gpus(4, None)),
        ("0", Gpus(0, None)),
        ("a100:4", Gpus(4, "a100")),
        ("nvidia_a100-sxm4-80gb:8", Gpus(8, "nvidia_a100-sxm4-80gb")),
        ("a100:2,a100:1", Gpus(3, "a100")),
        ("a100:2,v100:2", Gpus(4, None)),
    ],
)
def test_what_is_asked_for(text: str, found: Gpus) -> None:
    """--gpus and its like take a number, a type and a number, or several."""
    assert gpus.asked(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", Gpus(0, None)),
        ("(null)", Gpus(0, None)),
        ("gpu", Gpus(1, None)),
        ("gpu:2", Gpus(2, None)),
        ("gpu:a100", Gpus(1, "a100")),
        ("gpu:a100:2", Gpus(2, "a100")),
        ("gpu:1(IDX:0)", Gpus(1, None)),
        ("gpu:a100:2(IDX:0-1)", Gpus(2, "a100")),
        ("gpu:a100:3(IDX:0,2-3),gpu:v100:1(IDX:4)", Gpus(4, None)),
        ("craynetwork:1,gpu:a100:2(IDX:0,3),shard:4", Gpus(2, "a100")),
        ("gpu:0(IDX:)", Gpus(0, None)),
        ("gres:gpu:a100:2", Gpus(2, "a100")),
        ("gres/gpu=2", Gpus(2, None)),
        ("gpu:a100_3g.20gb:2(IDX:0-1)", Gpus(2, "a100_3g.20gb")),
    ],
)
def test_what_is_given(text: str, found: Gpus) -> None:
    """--gres, and the GRES of `scontrol show job -d`, MIG slices included; other resources do not count."""
    assert gpus.gres(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("NoDevFiles", []),
        ("0", ["0"]),
        ("0,1", ["0", "1"]),
        ("0-3,7", ["0", "1", "2", "3", "7"]),
        ("(IDX:0-1)", ["0", "1"]),
        ("(IDX:)", []),
        ("GPU-8f2c,GPU-11aa", ["GPU-8f2c", "GPU-11aa"]),
        ("MIG-GPU-8f2c/1/0,MIG-5ac1-77", ["MIG-GPU-8f2c/1/0", "MIG-5ac1-77"]),
    ],
)
def test_what_is_seen(text: str, found: list[str]) -> None:
    """Ranges, indices and names, one entry a device."""
    assert gpus.devices(text) == found


@pytest.mark.parametrize("text", ["x y", "3-1", "0-99999", "0,,1", "(IDX:0"])
def test_a_list_that_cannot_be_read_is_an_error(text: str) -> None:
    """A guess would start too many processes, or too few."""
    with pytest.raises(ValueError, match="list of GPUs"):
        gpus.devices(text)


@pytest.mark.parametrize("text", ["", "many", "a100", "a100:", "4(x2)x", "-1", "1.5"])
def test_a_number_that_is_none_is_an_error(text: str) -> None:
    """... and names the text."""
    with pytest.raises(ValueError, match="number of GPUs"):
        gpus.asked(text)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ({"SLURM_GPUS_ON_NODE": "2"}, 2),
        ({"SLURM_GPUS_ON_NODE": "a100:2", "SLURM_STEP_GPUS": "0-1", "CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"SLURM_STEP_GPUS": "1,3", "CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "MIG-a/1/0,MIG-a/2/0"}, 2),
    ],
)
def test_a_tasks_gpus_are_what_slurm_says_of_its_node(environ: dict[str, str], found: int | None) -> None:
    """A CUDA_VISIBLE_DEVICES that Slurm did not speak of says nothing."""
    assert gpus.on_node(environ) == found


def test_words_that_disagree_are_named() -> None:
    """Both of them, with their values."""
    with pytest.raises(ValueError, match=r"SLURM_GPUS_ON_NODE=2, CUDA_VISIBLE_DEVICES=0$"):
        gpus.on_node({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0"})
