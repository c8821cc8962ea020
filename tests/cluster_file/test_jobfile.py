"""job.yaml: the options of submit in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cluster import JobFile, load_job
from launcher.errors import UsageError
from launcher.model import Command


def loaded(tmp_path: Path, text: str) -> JobFile:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load_job(path)


FULL = """\
name: demo
cluster: cluster.yaml
backend: ssh
nodes: 2
nproc_per_node: auto
hosts: ["node[01-02]", node3]
exclude: node3, node4
instance_type: a100
source_dir: ./train_src
script: train.py
args: [--epochs, 10, --lr, 1e-3, --wd, 0.10, "yes"]
env: {A: x, B: 010x, C: 4}
env_file: [a.env, /b.env]
forward_env: MY_*
max_run_time: 2h
grace: 90
collect: [model, checkpoints]
keep: yes
max_code_size: 2GiB
"""


def test_every_key_is_understood(tmp_path: Path) -> None:
    """Times become seconds, sizes bytes, relative paths paths beside the file, and numbers among words stay as written."""
    assert loaded(tmp_path, FULL) == JobFile(
        path=tmp_path / "job.yaml",
        lines={line.split(":")[0]: number for number, line in enumerate(FULL.splitlines(), 1)},
        name="demo",
        cluster=str(tmp_path / "cluster.yaml"),
        backend="ssh",
        nodes=2,
        nproc_per_node="auto",
        hosts="node[01-02],node3",
        exclude="node3,node4",
        instance_type="a100",
        source_dir=str(tmp_path / "train_src"),
        command=Command(script=("train.py", "--epochs", "10", "--lr", "1e-3", "--wd", "0.10", "yes")),
        env={"A": "x", "B": "010x", "C": "4"},
        env_file=(str(tmp_path / "a.env"), "/b.env"),
        forward_env=("MY_*",),
        max_run_time=7200.0,
        grace=90.0,
        collect=("model", "checkpoints"),
        keep=True,
        max_code_size=2 << 30,
    )


def test_what_is_not_said_is_none(tmp_path: Path) -> None:
    """Nothing is filled in, so that a flag, the cluster file and the built-in value can be told apart."""
    assert loaded(tmp_path, "nodes: 1") == JobFile(path=tmp_path / "job.yaml", lines={"nodes": 1}, nodes=1)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("command: echo $RANK", Command(shell="echo $RANK")),
        ("command: |\n  torchrun \\\n    --nnodes=$WORLD_SIZE\n", Command(shell="torchrun \\\n  --nnodes=$WORLD_SIZE\n")),
        ("command: [python, -c, 'print(1)', 7]", Command(argv=("python", "-c", "print(1)", "7"))),
        ("script: a.py", Command(script=("a.py",))),
        ("script: [a b.py, --n, -1]", Command(script=("a b.py", "--n", "-1"))),
        ("script: [a.py, x]\nargs: ['', 'z']", Command(script=("a.py", "x", "", "z"))),
        ("args: []\nscript: a.py", Command(script=("a.py",))),
    ],
)
def test_a_text_is_for_the_shell_a_list_is_words_and_a_script_is_for_torchrun(
    tmp_path: Path, text: str, command: Command
) -> None:
    """A text stays verbatim; words are never split or joined."""
    assert loaded(tmp_path, text).command == command


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: 0", "1:8: nodes: 0: a whole number from 1 on"),
        ("nodes: '2'", '1:8: nodes: "2": a whole number from 1 on; write 2 without quotes'),
        ("nproc_per_node: many", "1:17: nproc_per_node: many: auto, or a whole number from 1 on"),
        ("nproc-per-node: 2", "1:1: nproc-per-node: unknown key;"),
        ("nproc-per-node: 2", "(did you mean nproc_per_node?)"),
        ("detach: true", "1:1: detach: unknown key: this is said on the command line only"),
        ("max_restarts: 3", "1:1: max_restarts: not in this version"),
        ("image: 1", "1:8: image: 1: a text is wanted here"),
        ("backend: slum", "1:10: backend: slum: allowed: local, ssh, slurm (did you mean slurm?)"),
        ("command: []", "1:10: command: a list: a text for `sh -c`, or a list of words"),
        ("command: ''", '1:10: command: "": a text for `sh -c`'),
        ("command: [a, no]", "1:10: command: a list: a word is wanted; put quotes around it"),
        ("script: a.py --epochs 3", "1:9: script: a.py --epochs 3: one path; write arguments under `args:`"),
        ("script: a.py\nargs: [--x, on]", '2:13: args[1]: on: a word is wanted; put quotes around it; YAML reads on as true'),
        ("script: a.py\nargs: [0x10]", "2:8: args[0]: 0x10: a word is wanted"),
        ("script: a.py\ncommand: b", "1:1: the file: `command` stands alone"),
        ("args: [a]", "1:1: the file: `args` are the arguments of a `script`"),
        ("cluster: a\nhostfile: b", "1:1: the file: `cluster` and `hostfile` both name the inventory"),
        ("max_run_time: 0", "1:15: max_run_time: 0: more than no time at all"),
        ("max_run_time: 24:00:00", "1:15: max_run_time: 24:00:00: seconds, or a number with a unit"),
        ("grace: soon", "1:8: grace: soon: seconds, or a number with a unit"),
        ("max_code_size: big", "1:16: max_code_size: big: bytes, or a number with a unit"),
        ("keep: 'yes'", '1:7: keep: "yes": true or false'),
        ("collect: [a/b]", "1:11: collect[0]: a/b: the name of an output channel"),
        ("forward_env: 'a b'", "a variable's name, * and ? allowed"),
        ("name: a/b", "1:7: name: a/b: letters, digits"),
        ("hosts: []", "1:8: hosts: a list: names of hosts"),
        ("hosts: 'n[2-1]'", "1:8: hosts: \"n[2-1]\": 2-1 does not count upwards"),
        ("env: {SECRET_KEY: 1.5}", "1:19: env.SECRET_KEY: a number: a text is wanted"),
        ("source_dir:", "source_dir: nothing: no value"),
    ],
)  # fmt: skip
def test_each_kind_of_mistake_is_named_with_place_value_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    """A job file's mistakes are told as those of a cluster file are."""
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, text)
    assert any(said in problem for problem in caught.value.problems), caught.value.problems
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(f"{tmp_path / 'job.yaml'}:")


def test_a_missing_job_file_is_an_error(tmp_path: Path) -> None:
    """The sentence names the path."""
    with pytest.raises(UsageError, match=r"nothing\.yaml: No such file"):
        load_job(tmp_path / "nothing.yaml")
