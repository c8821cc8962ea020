"""`launcher check` in an allocation of a real Slurm: its nodes, through one step that ends with the look."""

from __future__ import annotations

import json

from tests.cluster.slurm.handle import SlurmCluster


def test_the_nodes_of_an_allocation_are_looked_at(slurm: SlurmCluster) -> None:
    """Addresses, GPUs of the job alone; no step and no folder stays.  Outside of one there is nothing to look at."""
    launcher = f"{slurm.python} -m launcher"
    inside = f"{launcher} check -o json; echo; squeue --steps --noheader | grep -v -e extern -e batch -e interactive | wc -l"
    done = slurm.run(slurm.login, 'salloc --quiet -N2 --gpus-per-node=1 bash -c "$SCRIPT"', env={"SCRIPT": inside})
    document, *_, steps = done.stdout.splitlines()
    told = json.loads(document)
    assert (told["ok"], told["backend"], told["errors"]) == (True, "slurm", [])
    assert len({node["address"] for node in told["nodes"]}) == 2 and told["master_addr"] and steps.strip() == "0"
    assert [node["gpus"] for node in told["nodes"]] != [] and all(node["python_version"] for node in told["nodes"])
    assert not (slurm.shared / "home" / "jobs").exists() and not list((slurm.shared / "home" / "node" / "jobs").iterdir())
    outside = slurm.run(slurm.login, f"{launcher} check --backend slurm", check=False)
    assert outside.returncode == 2 and "salloc" in outside.stderr
