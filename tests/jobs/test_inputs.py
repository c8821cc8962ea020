"""Jobs that read data: the same channels on simulated nodes and on the fake cluster's real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.handle import Cluster
from tests.jobs.desk import Desk


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c", "sub/d"):
        (folder / name).write_text(f"{name}\n")
    return folder


def test_every_node_reads_all_of_a_channel_and_its_share_of_another(desk: Desk, data: Path) -> None:
    """By PAI's variables, below the job's folder; a second job is sent nothing."""
    # Nodes keep what they were sent, as by an earlier run of this test.
    salt = os.urandom(4).hex()
    for path in (data / "a", data / "b", data / "sub" / "d"):
        path.write_text(f"{path.relative_to(data)} {salt}\n")
    command = "cd $PAI_INPUT_TRAIN_SET; cat a sub/d; cat $PAI_INPUT_ONE; cd $PAI_INPUT_PART; echo share: $(find . -type f | sort)"
    options = ("--nodes", "2", "--input", f"train-set={data}", "--input", f"one={data / 'b'}", "--input", f"part={data}")
    done = desk.submit(*options, "--shard", "part", "--command", command)
    both = [f"[{rank}] {text} {salt}" for rank in (0, 1) for text in ("a", "sub/d", "b")]
    assert sorted(done.stdout.splitlines()[:-1]) == sorted([*both, "[0] share: ./a ./sub/c", "[1] share: ./b ./sub/d"])
    assert "input train-set: 4 files" in done.stderr and "are free there" in done.stderr
    assert "are free there" not in desk.submit(*options, "--command", "true").stderr
    prepared = desk.happened("prepared")
    assert prepared["nodes"][0]["inputs"]["one"].endswith("/input/data/one/b")


def test_names_of_any_bytes_arrive_as_they_are(local: Desk, tmp_path: Path) -> None:
    """Those that are no text, and lines in a name."""
    folder = os.fsencode(tmp_path / "odd")
    os.mkdir(folder)
    for name in (b"\xff\xfe", b"a\nb", "ü €".encode(), b"-rf"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(name)
    command = 'for f in "$PAI_INPUT_X"/*; do [ "$(cat "$f")" = "${f##*/}" ] && echo same; done'
    assert local.submit("--input", f"x={tmp_path / 'odd'}", "--command", command).stdout.count("[0] same") == 4


def test_a_job_file_says_the_same(local: Desk, data: Path) -> None:
    """Paths are relative to it, and a flag wins for its channel."""
    channels = "inputs: {train: data, part: {source: data, shard: true}}\n"
    text = channels + "nodes: 2\ncommand: cat $PAI_INPUT_TRAIN; ls $PAI_INPUT_PART/.\n"
    (data.parent / "job.yaml").write_text(text)
    done = local.submit("--input", f"train={data / 'a'}", str(data.parent / "job.yaml"), cwd="/")
    assert {"[0] a", "[1] a", "[1] b", "[0] sub"} <= set(done.stdout.splitlines())


def test_data_that_changed_since_submit_stop_the_job_before_its_start(local: Desk, data: Path) -> None:
    """Here between the snapshot and the coordinator's start: the file is named."""
    script = (
        "import os, sys; from launcher import api; real = api._start\n"
        f"def late(*words): open({str(data / 'a')!r}, 'w').write('other'); real(*words)\n"
        "api._start = late; from launcher.__main__ import main; main()"
    )
    words = [sys.executable, "-c", script, "submit", "--backend", "local", "--input", f"x={data}", "--command", "true"]
    done = subprocess.run(words, env=local.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "a was changed" in done.stderr and "changed since the job was submitted" in done.stderr
    assert local.json("status", "latest")["reason_code"] == "InputFailed"


def test_everything_wrong_is_said_at_once_before_anything_starts(local: Desk, data: Path) -> None:
    """Missing paths, odd names, two channels of one variable, a missing package, a password, too few files."""
    options = [f"a-b={data}", f"a.b={data}", f"x={data / 'none'}", "y=gs://bucket/x", "z=ftp://me:pw@host/x", f"../q={data}"]
    words = [word for option in options for word in ("--input", option)]
    done = local.submit(*words, "--nodes", "9", "--input", f"s={data}", "--shard", "s", "--command", "true", check=2)
    for sentence in (
        "'a-b' and 'a.b' would both be PAI_INPUT_A_B",
        f"inputs.x: there is no {data / 'none'} ({data} is the last folder of it that exists)",
        "inputs.y: gs://bucket/x: gs:// needs the package gcsfs: pip install gcsfs",
        "inputs.z: ftp://****@host/x: a password must not stand in a URI",
        "'../q': a channel's name: letters",
        "shard shares 4 file(s) among 9 nodes",
    ):
        assert sentence in done.stderr
    assert "pw" not in done.stderr and not (local.home / "jobs").exists()


@pytest.mark.cluster
def test_a_path_that_exists_on_the_nodes_is_used_there_as_it_is(remote: Desk, cluster: Cluster) -> None:
    """Said with `node:` or not; one that is missing on a node is an error that names it."""
    for host in ("node1", "node2"):
        cluster.exec(host, "mkdir", "-p", "/srv/set")
        cluster.exec(host, "sh", "-c", f"echo {host} > /srv/set/f")
    try:
        words = ("--hosts", "node1,node2", "--input", "x=/srv/set", "--input", "y=node:/srv/set/f")
        done = remote.submit(*words, "--command", "cat $PAI_INPUT_X/f $PAI_INPUT_Y")
        assert sorted(done.stdout.splitlines()[:-1]) == ["[0] node1"] * 2 + ["[1] node2"] * 2
        cluster.exec("node2", "rm", "-r", "/srv/set")
        failed = remote.submit(*words, "--command", "true", check=69)
        assert "node2: there is no /srv/set there" in failed.stderr
        assert "check the path of input x: it is not on this machine either" in failed.stderr
    finally:
        for host in ("node1", "node2"):
            cluster.exec(host, "rm", "-rf", "/srv/set")


def test_what_is_read_cannot_be_written(local: Desk, data: Path) -> None:
    """Its modes say so, whoever looks."""
    done = local.submit("--input", f"x={data}", "--command", "stat -L -c %A $PAI_INPUT_X $PAI_INPUT_X/a")
    assert done.stdout.splitlines()[:2] == ["[0] dr-x------", "[0] -r--------"]
    assert os.access(data / "a", os.W_OK)
