"""Every code block of the pages for users does what it shows.

Shell lines are typed on the machines that their page is about, files are read by their loaders, Python is executed, output is
compared, with … for what differs each time.  A block whose first line is a comment with a file's name is that file.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.handle import Cluster
from tests.cluster.slurm.handle import SlurmCluster
from tests.data.s3 import S3
from tests.docs.blocks import Block, all_blocks, of_page
from tests.docs.stage import Scene, Stage, here
from tests.jobs.desk import Desk, eventually

SCENES = {
    "README.md": Scene(),
    "README.md#Your own machines in five minutes": Scene("ssh"),
    "README.md#A Slurm site in five minutes": Scene("slurm", before="echo 'backend: slurm' > cluster.yaml"),
    "README.md#The fake cluster by hand": Scene("ssh"),
    "docs/tutorials/ssh.md": Scene("ssh", words={"/opt/t": sys.prefix}),
    "docs/tutorials/slurm.md": Scene("slurm"),
    "docs/slurm.md": Scene("slurm", words={"salloc -N 2 --gres=gpu:8\n": "salloc -N 2 --gres=gpu:1 "}),
    "docs/cli.md": Scene(
        words={
            "[OPTIONS] -- SCRIPT.py ARGS...": "--source-dir src -- train.py",
            "[OPTIONS] -- -m MODULE ARGS...": "--source-dir src -- -m train",
            "[OPTIONS] -- PROGRAM ARGS...": "--source-dir src -- true",
            "[OPTIONS] --command TEXT": "--source-dir src --command true",
            "[OPTIONS] JOB.yaml": "job.yaml",
        },
        before="echo '{command: [\"true\"], source_dir: src}' > job.yaml",
    ),
    "docs/data.md": Scene(
        words={"JOB": "latest", "/mnt/imagenet": "$STAGE/shards"},
        before="launcher submit --command 'echo weights > $PAI_OUTPUT_MODEL/w'",
        store=True,
    ),
    "docs/check.md": Scene(
        "ssh", words={"node[01-08] --image docker://pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime": "'node[1-2]'"}
    ),
    "docs/config.md": Scene(
        words={"'node[01-04]' --name lab": "'node[01-04]' --name four"},
        before="mkdir -p ~/lab; echo 'hosts: [node1]' > ~/lab/cluster.yaml",
    ),
}
"""page, or page#heading, -> where its blocks are run; any other page: on this machine"""

NOT_RUN = {
    "tests/cluster/cluster slurm-exec login srun -N3 hostname": "its block is run beside the tests of the other fake cluster",
    "URI/<job id>/model/…": "shows folders; tests/jobs/test_publishing.py compares them",
    "NODE  HOST   ADDRESS      USER   PYTHON                    TORCH      GPUS  FREE     RSYNC  CLOCK":
        "has faults; tests/jobs/test_check.py makes them",
    "launcher config": "asks a person; tests/config/test_config_command.py answers at a terminal",
}
"""a line of shell, or the first line of a block, that is not run -> why"""

EXAMPLES = [block for block in of_page("docs/estimator.md") if block.kind == "python"]
"""PAI's example, which tests/estimator/test_example.py runs on all kinds of machines and in a notebook, and a function as a
job, which tests/estimator/test_run.py runs"""
ELSEWHERE = [block.bare for block in EXAMPLES]
"""the same blocks, on whichever page"""

TRANSLATIONS = {"README.zh-CN.md": "README.md"}


def scenes(machines: str) -> list[str]:
    """The names of all that is run on such machines."""
    found = {scene_of(block): None for block in all_blocks() if block.page not in TRANSLATIONS and block.bare not in ELSEWHERE}
    return [name for name in found if SCENES.get(name, Scene()).machines == machines]


def scene_of(block: Block) -> str:
    """The key in the table, or the page."""
    parts = f"{block.page}#{block.heading}"
    return parts if parts in SCENES else block.page


def play(name: str, stage: Stage) -> None:
    """Run all blocks of a scene, and tell of all that fail."""
    failed = []
    stage.furnish()
    for block in (block for block in all_blocks() if scene_of(block) == name and block.bare not in ELSEWHERE):
        try:
            stage.play(block, NOT_RUN)
        except AssertionError as error:
            failed.append(f"{block}: {error}")
    assert not failed, "\n".join(failed)
    stage.finish()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty one; no process of the jobs there outlives the test."""
    yield tmp_path
    Desk(tmp_path / "home").end_everything()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Variables for a server of s3:// whose buckets are those that the pages name; none where the scene needs none."""
    if not SCENES.get(request.node.callspec.params["name"], Scene()).store:
        yield {}
        return
    server = S3()
    for bucket in ("sets", "models"):
        server.client().create_bucket(Bucket=bucket)
    server.client().put_object(Bucket="sets", Key="words.txt", Body=b"words")
    yield dict(server.environment)
    server.stop()


@pytest.mark.torch
@pytest.mark.parametrize("name", scenes("local"))
def test_blocks_for_this_machine(name: str, folder: Path, store: dict[str, str]) -> None:
    """On simulated nodes, and what needs no nodes at all."""
    play(name, here(folder, SCENES.get(name, Scene()), **store))


@pytest.mark.torch
@pytest.mark.parametrize("name", scenes("ssh"))
def test_blocks_for_ssh(name: str, folder: Path, cluster: Cluster) -> None:
    """On the fake cluster, whose ssh configuration the reader has."""
    assert cluster.python
    shutil.copy(cluster.ssh_config, folder / "ssh_config")
    (folder / "cluster.yaml").write_text(
        f"hosts: [node1, node2]\ndefaults: {{python: {cluster.python}}}\nssh: {{config: ssh_config}}\n"
    )
    (folder / ".cluster").symlink_to(cluster.cluster_yaml.parent)
    play(name, here(folder, SCENES[name]))
    for host in ("node1", "node2"):
        eventually(lambda host=host: not cluster.leftovers(host), f"nothing of ours on {host}: {cluster.leftovers(host)}")


@pytest.mark.torch
@pytest.mark.parametrize("name", scenes("slurm"))
def test_blocks_for_slurm(name: str, slurm: SlurmCluster) -> None:
    """On the log-in machine of the fake Slurm, in the directory that all machines share."""
    path = f"{slurm.shared}/bin:{Path(slurm.python).parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "LAUNCHER_CONFIG": "none"}
    stage = here(slurm.shared, SCENES[name])
    stage.argv = lambda script: slurm.argv(slurm.login, script, env=environment)
    play(name, stage)


def test_every_block_is_of_a_kind() -> None:
    """A new block is run, loaded or compared; one that cannot be has its reason in the table."""
    unknown = [f"{block}: {block.first}" for block in all_blocks() if block.kind == "?" and block.first not in NOT_RUN]
    assert unknown == []


def test_every_reason_is_needed() -> None:
    """The tables name nothing that is no longer there."""
    blocks = all_blocks()
    lines = {line.strip() for block in blocks for line in block.bare}
    assert set(NOT_RUN) <= lines
    assert set(SCENES) <= {scene_of(block) for block in blocks} | {block.page for block in blocks}


@pytest.mark.parametrize("translated", TRANSLATIONS)
def test_translations_have_the_same_blocks(translated: str) -> None:
    """... but for comments, so that running one of them is enough."""
    ours, theirs = ([block.bare for block in of_page(page)] for page in (translated, TRANSLATIONS[translated]))
    assert ours == theirs


def test_output_that_is_not_printed_is_noticed() -> None:
    """The comparison can fail."""
    from tests.docs.stage import compare

    compare("[0] step …\n…/model", "x\n[0] step 1\n/home/model\n")
    with pytest.raises(AssertionError, match="no such line"):
        compare("no such line", "another one")
    assert len(EXAMPLES) == 2
