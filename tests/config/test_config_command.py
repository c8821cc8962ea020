"""`launcher config`: the wizard and its neighbours, from a terminal and without one."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.cli.wizard import _CHINESE
from launcher.cluster import load_cluster
from launcher.cluster.userfile import read_user_file
from launcher.configuration import as_yaml, changed, partitions, ssh_hosts
from tests import warm
from tests.config.conftest import Person

LAB = "# mine\ndefault: lab   # at work\nclusters:\n  lab: ../../lab.yaml\njob:\n  env: {MY_TOKEN: hush, A: b}\n  grace: 60\n"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def config(*words: str, more: Mapping[str, str] | None = None) -> Done:
    """Without a terminal."""
    done = warm.launcher(["config", *words], env={**os.environ, **(more or {})})
    return Done(done.returncode, done.stdout, done.stderr)


def answer(*answers: str, words: tuple[str, ...] = (), more: Mapping[str, str] | None = None, stop: int | None = None) -> Done:
    """From a terminal: each answer is typed when the next question stands there; then ``stop`` is sent, if any."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(more or {})}
    command = [sys.executable, "-m", "launcher", "config", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        os.close(theirs)
        try:
            said = _typed(running, ours, answers, stop)
            out, err = running.communicate(timeout=120)
        except BaseException:
            running.kill()
            raise
    os.close(ours)
    return Done(running.returncode, out.decode(), said + err.decode())


def _typed(running: subprocess.Popen[bytes], terminal: int, answers: tuple[str, ...], stop: int | None) -> str:
    said = ""
    for text in answers:
        said += _until_asked(running, terminal)
        os.write(terminal, text.encode() + b"\n")
    if stop is not None:
        said += _until_asked(running, terminal)
    while stop is not None and running.poll() is None:
        # A signal in the moment before the question waits for its answer is heard with the next one.
        running.send_signal(stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(0.3)
    return said


def _until_asked(running: subprocess.Popen[bytes], terminal: int) -> str:
    assert running.stderr is not None
    said = b""
    deadline = time.monotonic() + 120
    while not said.endswith((b"]: ", b"]): ")) and time.monotonic() < deadline:
        byte = os.read(running.stderr.fileno(), 1)
        if not byte:
            break
        said += byte
    return said.decode()


def test_without_a_terminal_nobody_is_asked(person: Person) -> None:
    """A sentence, exit 2, and nothing is written."""
    done = config()
    assert done.code == 2 and "there is no terminal" in done.err and "--from FILE" in done.err
    assert not person.config.exists()


def test_yes_takes_the_inventory_that_is_here(person: Person) -> None:
    """Its file stays where it is; the config is the user's alone."""
    (person.work / "cluster.yaml").write_text("name: lab\nhosts: [a, b]\n")
    done = config("--yes")
    assert done.code == 0, done.err
    read = read_user_file(person.config)
    assert (read.default, dict(read.clusters)) == ("lab", {"lab": str(person.work / "cluster.yaml")})
    assert stat.S_IMODE(person.config.stat().st_mode) == 0o600 and stat.S_IMODE(person.config.parent.stat().st_mode) == 0o700
    assert os.listdir(person.config.parent) == ["config.yaml"]


def test_options_write_a_cluster_file(person: Person) -> None:
    """For machines that answer ssh, and for Slurm."""
    assert config("--hosts", "node[1-2],x:22", "--gpus", "4", "--name", "lab", "--ssh-config", "/dev/null").code == 0
    lab = load_cluster(read_user_file(person.config).clusters["lab"])
    assert [(host.name, host.gpus) for host in lab.hosts] == [("node1", 4), ("node2", 4), ("x:22", 4)]
    assert lab.ssh.config == "/dev/null"
    assert config("--partition", "gpu", "--gpus", "2", "--name", "hpc", "--no-default").code == 0
    read = read_user_file(person.config)
    hpc = load_cluster(read.clusters["hpc"])
    assert (hpc.backend, hpc.slurm.partition, hpc.slurm.gpus_per_node, read.default) == ("slurm", "gpu", "2", "lab")
    assert stat.S_IMODE(Path(read.clusters["hpc"]).stat().st_mode) == 0o600


def test_nothing_is_replaced_without_a_yes(person: Person) -> None:
    """Neither a cluster file nor the meaning of a name."""
    assert config("--hosts", "a", "--name", "lab").code == 0
    done = config("--hosts", "b", "--name", "lab")
    assert done.code == 2 and "is there already" in done.err and "say --yes" in done.err
    done = config("--from", str(person.home / "lab.yaml"), "--name", "lab")
    assert done.code == 2 and "lab means" in done.err
    assert [host.name for host in load_cluster(read_user_file(person.config).clusters["lab"]).hosts] == ["a"]
    assert config("--hosts", "b", "--name", "lab", "--yes").code == 0
    assert [host.name for host in load_cluster(read_user_file(person.config).clusters["lab"]).hosts] == ["b"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--hosts", "a b"), "cannot be used"),
        (("--from", "none.yaml"), "none.yaml"),
        (("--hosts", "a", "--partition", "p"), "both say which machines"),
        (("--hosts", "a", "--name", "a b"), "--name a b: letters"),
        (("--hosts", "a", "--name", "local"), "another name"),
        (("use", "nope"), "no cluster is called 'nope'"),
        (("set", "grase", "1"), "there is no setting grase"),
        (("set", "grace", "soon"), "job.grace: soon: seconds"),
        (("set", "default", "nope"), "no cluster of that name"),
        (("set", "default", "./none.yaml"), "none.yaml"),
        (("set", "clusters.x", "none.yaml"), "none.yaml"),
        (("use", "./none.yaml"), "none.yaml"),
        (("--yes", "show"), "options of the wizard mean nothing"),
    ],
)
def test_what_cannot_be_is_refused(person: Person, words: tuple[str, ...], text: str) -> None:
    """With exit 2, and the config stays as it was; nothing is written beside it."""
    person.says(LAB)
    done = config(*words)
    assert done.code == 2 and text in done.err, done.err
    assert person.config.read_text() == LAB and [*person.config.parent.iterdir()] == [person.config]


def test_a_cluster_that_cannot_be_used_is_made_nobodys_default(person: Person) -> None:
    """Its file was right when it got its name; all that is wrong now is told."""
    person.says(LAB)
    (person.home / "lab.yaml").write_text("hosts: [a]\nbackand: ssh\n")
    done = config("use", "lab")
    assert done.code == 2 and "lab.yaml:2:1: backand: " in done.err and person.config.read_text() == LAB


def test_the_wizard_offers_what_it_finds_and_asks_before_it_writes(person: Person) -> None:
    """An inventory of the home folder that is wrong is told, not offered; the summary comes before the yes."""
    (person.work / "cluster.yaml").write_text("name: bench\nhosts: [a, b]\n")
    (person.home / "cluster.yaml").write_text("hosts: [x]\nhots: 1\n")
    done = answer("1", "", "y")
    assert done.code == 0, done.err
    assert "(ssh, 2 hosts)" in done.err and "cannot be used" in done.err and "hots" in done.err
    assert f"{person.config} (new)" in done.err and "default: bench" in done.err
    assert read_user_file(person.config).default == "bench"
    before = person.config.read_text()
    assert "nothing was written" in answer("1", "", "n").err and person.config.read_text() == before


def test_the_wizard_speaks_chinese_where_the_locale_does(person: Person) -> None:
    """Every sentence has both."""
    (person.work / "cluster.yaml").write_text("hosts: [a, b]\n")
    done = answer(more={"LC_ALL": "zh_CN.UTF-8"}, words=("--ssh-config", "/dev/null"), stop=signal.SIGINT)
    assert "任务在哪些机器上运行？" in done.err and "（ssh，2 台主机）" in done.err and done.code == 130
    source = (Path(__file__).parents[2] / "launcher/cli/wizard.py").read_text()
    assert [sentence for sentence in _CHINESE if source.count(f'"{sentence}"') < 2] == []


def test_the_end_of_input_leaves_nothing(person: Person) -> None:
    """As Ctrl-C does."""
    (person.work / "cluster.yaml").write_text("name: bench\nhosts: [a, b]\n")
    done = answer("1", "\x04")
    assert done.code == 130 and "cancelled" in done.err and not person.config.parent.exists()


def test_hosts_of_the_ssh_configuration_are_offered(person: Person, tmp_path: Path) -> None:
    """Wrong answers are asked again; Ctrl-C leaves nothing."""
    (tmp_path / "more").write_text("Host gpu1 gpu2 *.example.org !bad\n  User x\n")
    ssh = tmp_path / "ssh"
    ssh.write_text(f"Include {tmp_path}/m*\nhost = login\nMatch all\nHost *\n  ForwardAgent no\n")
    assert ssh_hosts(str(ssh)) == ["login", "gpu1", "gpu2"]
    words = ("--ssh-config", str(ssh))
    done = answer("1", "gpu1 gpu2", stop=signal.SIGINT, words=words)
    assert done.code == 130 and "cannot be used" in done.err and not person.config.parent.exists()
    done = answer("1", "gpu[1-2]", "lab", "y", words=words)
    assert done.code == 0, done.err
    lab = load_cluster(read_user_file(person.config).clusters["lab"])
    assert [host.name for host in lab.hosts] == ["gpu1", "gpu2"] and lab.name == "lab" and lab.ssh.config == str(ssh)


def test_partitions_of_slurm_are_offered(person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default one first; how many GPUs a job asks for is a question."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\nprintf 'cpu|4|(null)\\ngpu*|3|gpu:a100:8(S:0)\\ngpu*|1|gpu:4\\n'\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [(one.name, one.nodes, one.gpus) for one in partitions()] == [("gpu", 4, 4), ("cpu", 4, 0)]
    done = answer("1", "2", "hpc", "", words=("--ssh-config", "/dev/null"))
    assert done.code == 0, done.err
    hpc = load_cluster(read_user_file(person.config).clusters["hpc"])
    assert (hpc.name, hpc.backend, hpc.slurm.partition, hpc.slurm.gpus_per_node) == ("hpc", "slurm", "gpu", "2")


def test_show_tells_every_origin_and_no_secret(person: Person) -> None:
    """As a table and as a document."""
    path = person.says(LAB)
    person.config.chmod(0o644)
    told = json.loads(config("show", "-o", "json", more={"LAUNCHER_KEEP": "yes"}).out)
    settings = {one["name"]: (one["value"], one["origin"]) for one in told["settings"]}
    assert settings["cluster"] == ("lab", f"the default of {path}:2, a name of {path}:4")
    assert settings["job.grace"] == (60.0, f"{path}:7") and settings["job.keep"] == (True, "LAUNCHER_KEEP")
    assert settings["job.collect"] == (None, "built-in") and settings["job.env.MY_TOKEN"][0] == "****"
    assert told["readable_by_others"] and told["exists"]
    shown = config("show", more={"LAUNCHER_GRACEE": "5s"})
    assert "hush" not in shown.out and "job.grace" in shown.out and "chmod 600" in shown.err
    assert "LAUNCHER_GRACEE says nothing: there is no such variable (did you mean LAUNCHER_GRACE?)" in shown.err
    person.config.unlink()
    assert "(not there)" in config("show").err


def test_use_and_set_change_one_line(person: Person) -> None:
    """Comments stay, and the file becomes the user's alone."""
    person.says(LAB)
    assert config("use", "local").code == 0
    assert person.config.read_text() == LAB.replace("default: lab", "default: local")
    assert stat.S_IMODE(person.config.stat().st_mode) == 0o600
    assert config("set", "grace", "90s").code == 0 and config("set", "job.collect", "model, checkpoints").code == 0
    read = read_user_file(person.config)
    assert read.job["grace"] == 90.0 and read.job["collect"] == ["model", "checkpoints"]
    assert "# at work" in person.config.read_text()


@pytest.mark.parametrize(
    ("text", "key", "value", "becomes"),
    [
        ("", ("default",), "a", "default: a\n"),
        ("x: 1", ("default",), "a", "x: 1\ndefault: a\n"),
        ("default: b # c\n", ("default",), "a", "default: a # c\n"),
        ("clusters:\n    b: x\n", ("clusters", "a"), "y", "clusters:\n    a: y\n    b: x\n"),
        ("clusters: {b: x}\n", ("clusters", "a"), "y", "clusters: {a: y, b: x}\n"),
        ("clusters: {}\n", ("clusters", "a"), "y", "clusters:\n  a: y\n"),
        ("clusters:\njob:\n  keep: true\n", ("clusters", "a"), "y", "clusters:\n  a: y\njob:\n  keep: true\n"),
        ("job:\n  keep: true\n", ("job", "keep"), "false", "job:\n  keep: false\n"),
        ("clusters: &x {b: y}\nother: *x\n", ("clusters", "b"), "z", "clusters:\n  b: z\nother:\n  b: y\n"),
    ],
)  # fmt: skip
def test_a_change_keeps_the_rest(text: str, key: tuple[str, ...], value: str, becomes: str) -> None:
    """What cannot be changed in the text is written anew."""
    assert changed(text, key, value) == becomes


@pytest.mark.parametrize(
    ("key", "said", "text"),
    [
        ("grace", "60s", "60s"), ("keep", "true", "true"), ("collect", "a,b", "[a, b]"),
        ("x", "a: b", '"a: b"'), ("x", "[a", '"[a"'), ("x", "", '""'),
    ],
)  # fmt: skip
def test_what_is_typed_becomes_yaml(key: str, said: str, text: str) -> None:
    """Text that YAML would take for more is quoted."""
    assert as_yaml(("job", key), said) == text


def test_a_cluster_may_be_called_by_a_word_that_yaml_reads_otherwise(person: Person) -> None:
    """A name is a text, in the cluster file and in the config; comments stay."""
    person.says("# mine\nclusters:\n  lab: ../../lab.yaml\n")
    assert answer("2", "a,b", "true", "", words=("--ssh-config", "/dev/null")).code == 0
    assert config("--hosts", "c", "--name", "12", "--yes").code == 0 and config("use", "true").code == 0
    read = read_user_file(person.config)
    assert read.default == "true" and {*read.clusters} == {"lab", "true", "12"} and person.config.read_text().startswith("# mine")
    assert [load_cluster(read.clusters[name]).name for name in ("true", "12")] == ["true", "12"]
