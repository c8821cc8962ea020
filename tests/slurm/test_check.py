"""`launcher check` in an allocation of a real Slurm: its nodes, through one step that ends with the look."""

from __future__ import annotations

import json

from tests.cluster.slurm.handle import SlurmCluster


def test_the_nodes_of_an_allocation_are_looked_at(slurm: SlurmCluster) -> None:
    """Addresses, GPUs of the job alone; no step and no folder stays.  Outside of one there is nothing to look at."""
    launcher = f"{slurm.python} -m launcher"
    # slurmctld hears from the nodes that a step is over, a moment after its srun does.
    over = "until ! squeue --steps --noheader | grep -q -v -e extern -e batch -e interactive; do sleep 0.1; done"
    inside = f"{launcher} check -o json; {over}"
    done = slurm.run(slurm.login, 'salloc --quiet -N2 --gpus-per-node=1 bash -c "$SCRIPT"', env={"SCRIPT": inside})
    told = json.loads(done.stdout)
    assert (told["ok"], told["backend"], told["errors"]) == (True, "slurm", [])
    assert len({node["address"] for node in told["nodes"]}) == 2 and told["master_addr"]
    assert [node["gpus"] for node in told["nodes"]] != [] and all(node["python_version"] for node in told["nodes"])
    assert not (slurm.shared / "home" / "jobs").exists() and not list((slurm.shared / "home" / "node" / "jobs").iterdir())
    outside = slurm.run(slurm.login, f"{launcher} check --backend slurm", check=False)
    assert outside.returncode == 2 and "salloc" in outside.stderr
