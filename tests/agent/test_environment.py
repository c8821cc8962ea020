"""What a node finds of an environment, and the sentence where it is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.environments import Place, parse, wrap
from launcher.errors import NodeUnusable
from tests.agent.far import Node


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory and a PATH of our own: nothing of this machine's conda, docker and modules is seen."""
    made = tmp_path / "home"
    (made / "bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("PATH", f"{made}/bin:/usr/bin:/bin")
    for name in ("CONDA_EXE", "CONDA_ROOT", "MAMBA_ROOT_PREFIX", "BASH_ENV"):
        monkeypatch.delenv(name, raising=False)
    return made


def program(path: Path, text: str) -> Path:
    """A shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def find(node: Node, uri: str, *programs: str) -> dict[str, Any]:
    """What the node answers."""
    environment = parse(uri)
    assert environment is not None
    link, _ = node.connect()
    return link.ask("environment_find", kind=environment.kind, name=environment.name, programs=list(programs))


def refused(node: Node, uri: str) -> str:
    """The sentence with which the node refuses."""
    with pytest.raises(NodeUnusable) as caught:
        find(node, uri)
    return caught.value.what


def run(
    node: Node, uri: str, told: dict[str, Any], *argv: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command, wrapped and run here as the node would."""
    place = Place("j", 0, 0, str(node.job), told)
    made = wrap(parse(uri), argv, {"PAI_WORKING_DIR": str(node.folder), **(env or {})}, place)
    path = os.pathsep.join([*([told["bin"]] if told["bin"] else []), os.environ["PATH"]])
    return subprocess.run(made.argv, env={**os.environ, "PATH": path, **made.env}, capture_output=True, text=True, check=False)


def test_a_venv_is_its_interpreter_and_its_programs(node: Node, home: Path) -> None:
    """Also one below the home directory; programs that it has not are the node's."""
    program(home / "t" / "bin" / "python", "echo its own")
    program(home / "bin" / "other", "")
    told = find(node, "venv:~/t", "python", "other", "torchrun")
    assert (told["python"], told["bin"]) == (f"{home}/t/bin/python", f"{home}/t/bin")
    assert told["programs"] == {"python": f"{home}/t/bin/python", "other": f"{home}/bin/other", "torchrun": None}
    assert refused(node, "venv:/nowhere") == "no virtual environment at /nowhere: there is no /nowhere/bin/python"


def conda(home: Path, *names: str) -> None:
    """An installation with environments, and one elsewhere that environments.txt knows."""
    for prefix in (home / "miniconda3", *(home / "miniconda3" / "envs" / name for name in names), home / "far" / "away"):
        (prefix / "conda-meta").mkdir(parents=True)
        (prefix / "bin").mkdir()
        (prefix / "bin" / "python").symlink_to(sys.executable)
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(f"{home}/far/away\n/gone\n")


def test_conda_is_found_without_conda_by_name_and_by_prefix(node: Node, home: Path) -> None:
    """`base`, an environment of an installation, one that is known by conda's list, and a path."""
    conda(home, "t")
    prefixes = {
        "conda:base": "miniconda3",
        "conda:t": "miniconda3/envs/t",
        "conda:away": "far/away",
        f"conda:{home}/far/away": "far/away",
    }
    for uri, prefix in prefixes.items():
        told = find(node, uri)
        assert (told["prefix"], told["python"]) == (f"{home}/{prefix}", f"{home}/{prefix}/bin/python")


def test_a_wrong_conda_name_lists_those_there_are(node: Node, home: Path) -> None:
    """And where there is no conda at all, that is what is said."""
    assert refused(node, "conda:t") == "no conda there: no program `conda` in PATH, no environment in ~/.conda/environments.txt"
    conda(home, "t", "u")
    assert refused(node, "conda:v") == "no conda environment 'v'; there are: away, base, t, u"


def test_conda_itself_is_asked_last(node: Node, home: Path) -> None:
    """For environments in folders that only its configuration knows."""
    conda(home)
    said = {"root_prefix": f"{home}/miniconda3", "envs": [f"{home}/far/away", f"{home}/x/hidden"]}
    program(home / "bin" / "conda", f"echo '{json.dumps(said)}'")
    (home / "x" / "hidden" / "bin").mkdir(parents=True)
    (home / "x" / "hidden" / "bin" / "python").symlink_to(sys.executable)
    assert find(node, "conda:hidden")["prefix"] == f"{home}/x/hidden"


def test_conda_is_activated_with_what_its_packages_and_its_user_set(node: Node, home: Path) -> None:
    """Scripts may print; the command's own stdout stays clean, and a variable of the job's wins."""
    conda(home, "t")
    prefix = home / "miniconda3" / "envs" / "t"
    (prefix / "etc" / "conda" / "activate.d").mkdir(parents=True)
    (prefix / "etc" / "conda" / "activate.d" / "a.sh").write_text("echo noise; export FROM_SCRIPT=$CONDA_DEFAULT_ENV\n")
    (prefix / "conda-meta" / "state").write_text('{"env_vars": {"FROM_STATE": "a \'b\' $HOME", "MINE": "theirs"}}')
    told = find(node, "conda:t")
    text = 'echo "$FROM_SCRIPT|$FROM_STATE|$MINE|$1|${PATH%%:*}"'
    done = run(node, "conda:t", told, "sh", "-c", text, "sh", "a b", env={"MINE": "mine"})
    assert done.stdout == f"t|a 'b' $HOME|mine|a b|{prefix}/bin\n"
    assert "noise" in done.stderr


PROFILE = """
echo welcome
module() {
    case "$2" in
    good/1) echo loading; PATH=$HOME/modules/bin:$PATH;;
    *) echo "ERROR: Unable to locate a modulefile for '$2'" >&2;;
    esac
}
"""


def test_a_module_is_loaded_in_a_login_shell(node: Node, home: Path) -> None:
    """What the profile prints is not the command's; programs are those that the module brings."""
    (home / ".bash_profile").write_text(PROFILE)
    program(home / "modules" / "bin" / "python3", 'echo its python "$@"; pwd')
    told = find(node, "module:good/1", "torchrun")
    assert (told["python"], told["programs"]) == (f"{home}/modules/bin/python3", {"torchrun": None})
    done = run(node, "module:good/1", told, "python3", "a b")
    assert done.stdout == f"its python a b\n{node.folder}\n"
    assert "welcome" in done.stderr
    assert "loading" in done.stderr


def test_a_module_that_cannot_be_loaded_is_told_by_its_own_words(node: Node, home: Path) -> None:
    """Old versions of `module` say so and end well."""
    assert refused(node, "module:good/1") == "no command `module` in a log-in shell there"
    (home / ".bash_profile").write_text(PROFILE)
    said = refused(node, "module:bad/1")
    assert said == "`module load bad/1` fails there: ERROR: Unable to locate a modulefile for 'bad/1'"


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("podman://t", "there is no podman there"),
        ("apptainer:///i.sif", "there is neither apptainer nor singularity there"),
    ],
)
def test_a_runtime_that_is_not_there_is_a_sentence(node: Node, home: Path, uri: str, sentence: str) -> None:
    """Instead of exit status 127 when everything has been prepared."""
    assert refused(node, uri) == sentence


PODMAN = """
case "$1 $2" in
"info "*) exit 0;;
"image inspect") [ -e $HOME/pulled ] && echo sha256:1;;
"pull "*) case $2 in good) touch $HOME/pulled;; *) echo "Error: no such host" >&2; exit 125;; esac;;
esac
"""


def test_an_image_is_pulled_and_that_is_said(node: Node, home: Path) -> None:
    """Once; and where it cannot be had, the runtime's last words."""
    program(home / "bin" / "podman", PODMAN)
    assert refused(node, "podman://bad") == "the image bad is not there and cannot be pulled: Error: no such host"
    heard: list[str] = []
    link = node.link()
    link._heard = heard.append
    link.connect(nonce="n", python=node.host.python, venv=None, programs=[])
    request = {"kind": "podman", "name": "good", "programs": []}
    told = link.ask("environment_find", **request)
    assert (told["program"], told["id"], told["uid"], told["rootless"]) == (f"{home}/bin/podman", "sha256:1", os.getuid(), False)
    assert [text.partition(" after")[0] for text in heard] == ["node0: pulls the image good", "node0: has the image good"]
    link.ask("environment_find", **request)
    assert len(heard) == 2


def test_apptainer_keeps_an_image_that_it_has_pulled(node: Node, home: Path) -> None:
    """As a file beside our other things there; an image file of the user's own is used where it is."""
    program(home / "bin" / "apptainer", '[ "$1" = pull ] && echo "$3" > "$2"')
    told = find(node, "apptainer://docker://t:1")
    assert Path(told["image"]).read_text() == "docker://t:1\n"
    assert Path(told["image"]).parent == node.folder / "work" / "node" / "images"
    assert refused(node, "apptainer:///nowhere.sif") == "there is no image /nowhere.sif there"


def test_apptainer_is_given_no_path_that_it_would_take_apart(tmp_path: Path, home: Path) -> None:
    """In --bind a colon ends a path, a comma the whole of it."""
    program(home / "bin" / "apptainer", "exit 0")
    for letter in ":,":
        node = Node(tmp_path / f"a{letter}b")
        said = refused(node, "apptainer:///x.sif")
        node.close()
        assert said == f"{home}/bin/apptainer cannot be given {node.job}, for the : or , in it"


def test_links_in_data_are_followed_for_a_container(node: Node, tmp_path: Path) -> None:
    """It is given where the data is, and the folders that links lead to."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").touch()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a").symlink_to(tmp_path / "store" / "a")
    (tmp_path / "data").symlink_to(tmp_path / "own")
    link, _ = node.connect()
    told = link.ask("environment_resolve", paths=[str(tmp_path / "data"), str(tmp_path / "data" / "a")])["paths"]
    assert told[f"{tmp_path}/data"] == {"real": f"{tmp_path}/own", "file": False, "more": [f"{tmp_path}/store"]}
    assert told[f"{tmp_path}/data/a"] == {"real": f"{tmp_path}/store/a", "file": True, "more": []}
