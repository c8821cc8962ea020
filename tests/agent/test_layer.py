"""The program that installs requirements as a layer: real pip, packages made here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import layer, layers
from tests.agent.wheels import blocking_project, wheel
from tests.jobs.desk import eventually


class Node:
    """A folder of layers, and the program that fills it."""

    def __init__(self, root: Path) -> None:
        self.layers, self.wheels = root / "layers", root / "wheels"
        self.layers.mkdir()
        self._count = 0

    def start(self, lines: Sequence[str], python: str = sys.executable, **more: Any) -> tuple[Path, subprocess.Popen[str]]:
        self._count += 1
        folder = self.layers / "asked" / str(self._count)
        folder.mkdir(parents=True)
        (folder / "build.py").write_text(Path(layer.__file__).read_text())
        index = ["--no-index", f"--find-links {self.wheels}"]
        plain = {"constraints": [], "code": None, "image": None, "build": True, "programs": []}
        order = {"layers": str(self.layers), "lines": [*index, *lines], **plain, **more}
        (folder / "order.json").write_text(json.dumps(order))
        words = [python, str(folder / "build.py")]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
        return folder, process

    def end(self, started: tuple[Path, subprocess.Popen[str]]) -> tuple[dict[str, Any], str]:
        """(its result, what it printed)."""
        folder, process = started
        said = process.communicate(timeout=300)[0]
        result = folder / "result.json"
        return (json.loads(result.read_text()) if result.exists() else {}), said

    def build(self, lines: Sequence[str], **more: Any) -> tuple[dict[str, Any], str]:
        return self.end(self.start(lines, **more))

    def environments(self) -> list[Path]:
        """The environments that lie there, whole or not."""
        return sorted(self.layers.glob("*/venv-*"))


def end_all(root: Path) -> None:
    """What still builds below a folder."""
    for line in subprocess.check_output(["ps", "-eo", "pid=,args="], text=True).splitlines():
        if str(root) in line:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_layer_is_built_once_and_sees_everything_below_it(node: Node) -> None:
    """Its own interpreter has both; the one below finds the layer by PYTHONPATH; the second time nothing is run."""
    wheel(node.wheels, "addon", "1.5")
    assert node.build(["addon"], build=False) == ({}, "") and not node.environments()
    made, said = node.build(["addon"], programs=["addon-run", "nowhere"])
    assert made["built"] and "Successfully installed addon-1.5" in said
    show = [made["python"], "-c", "import addon, pytest, sys; print(addon.VERSION, sys.prefix != sys.base_prefix)"]
    assert subprocess.check_output(show, text=True).split() == ["1.5", "True"]
    below = dict(os.environ, PYTHONPATH=made["site"])
    found = subprocess.check_output([sys.executable, "-c", "import addon; print(addon.__file__)"], env=below, text=True)
    assert found.startswith(made["site"])
    assert made["programs"] == {"addon-run": os.path.join(made["bin"], "addon-run"), "nowhere": None}
    again, said = node.build(["addon"], build=False)
    assert (again["python"], again["built"], said) == (made["python"], False, "")


def test_what_is_installed_and_over_what_tells_layers_apart(node: Node) -> None:
    """Other lines, constraints, code or image: another layer."""
    wheel(node.wheels, "addon", "1.5")
    made = node.build(["addon"])[0]
    assert made["built"]
    for more in ({"constraints": ["addon<2"]}, {"code": "digest"}, {"image": "docker://x"}):
        assert node.build(["addon"], build=False, **more) == ({}, "")
    assert node.build(["addon==1.5"], build=False) == ({}, "")


def test_a_constraint_holds(node: Node) -> None:
    """The newest version that it allows is taken."""
    wheel(node.wheels, "addon", "1.5")
    wheel(node.wheels, "addon", "2.0")
    assert "Successfully installed addon-1.5" in node.build(["addon"], constraints=["addon<2"])[1]


def test_what_cannot_be_installed_leaves_nothing_behind(node: Node) -> None:
    """pip's words, a sentence, and no half of an environment."""
    node.wheels.mkdir()
    told, said = node.build(["no-such-thing==9"])
    assert "exit status 1" in told["error"] and "No matching distribution found for no-such-thing==9" in said
    assert not node.environments()


def test_two_at_once_build_once(node: Node) -> None:
    """The other one waits, and finds it."""
    wheel(node.wheels, "addon")
    started = [node.start(["addon"]) for _ in range(2)]
    ended = [node.end(one) for one in started]
    assert len({made["python"] for made, _ in ended}) == 1 == len(node.environments())
    assert sum("Successfully installed" in said for _, said in ended) == 1


def test_what_a_killed_build_left_is_removed_by_the_next(node: Node, tmp_path: Path) -> None:
    """Nothing vouches for it."""
    mark = tmp_path / "builds"
    blocking_project(tmp_path / "blocking", mark)
    _, process = node.start([str(tmp_path / "blocking")])
    eventually(mark.exists, "it builds")
    (left,) = node.environments()
    process.kill()
    end_all(tmp_path)
    (tmp_path / "blocking" / "backend.py").write_text("raise SystemExit('no')\n")
    node.build([str(tmp_path / "blocking")])
    assert not left.exists() and not node.environments()


def test_an_ended_build_takes_its_half_along(node: Node, tmp_path: Path) -> None:
    """SIGTERM, as when a job is cancelled."""
    mark = tmp_path / "builds"
    _, process = node.start([str(blocking_project(tmp_path / "blocking", mark))])
    eventually(mark.exists, "it builds")
    process.terminate()
    process.wait(timeout=300)
    assert not node.environments()
    end_all(tmp_path)


def test_a_layer_that_lost_its_interpreter_is_built_anew(node: Node) -> None:
    """Somebody cleaned up there, by hand."""
    wheel(node.wheels, "addon")
    made = node.build(["addon"])[0]
    os.unlink(made["python"])
    again = node.build(["addon"])[0]
    assert again["built"] and os.path.exists(again["python"]) and len(node.environments()) == 1


def test_an_interpreter_of_a_virtual_environment_shares_its_packages(node: Node, tmp_path: Path) -> None:
    """It gets none of the layer's, and need not have pip where the Python below it has one."""
    base = tmp_path / "base"
    subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", str(base)])
    python = str(base / "bin" / "python")
    site = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True).strip()
    Path(site, "below.py").write_text("X = 1\n")
    wheel(node.wheels, "addon")
    made, _ = node.end(node.start(["addon"], python=python))
    subprocess.check_call([made["python"], "-c", "import below, addon"])
    assert not list(Path(site).glob("addon*")) and not list(Path(site).glob("pip*"))


def test_an_installation_can_be_ended_before_it_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of a session that ends at once ends it as a group, which the child itself may not have made yet."""
    guard, own = os.getpid(), os.setpgid

    def late(pid: int, group: int) -> None:
        if os.getpid() != guard:
            os.kill(os.getpid(), signal.SIGSTOP)
        own(pid, group)

    monkeypatch.setattr(os, "setpgid", late)
    child = layers._start(["touch", str(tmp_path / "begun")], dict(os.environ), tmp_path)
    try:
        os.killpg(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL and list(tmp_path.iterdir()) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_a_layer_that_is_whole_stays_though_its_build_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the moment in which it gets its name and the next line; removed in part, it would be taken for whole."""

    def make(venv: str) -> str:
        os.makedirs(os.path.join(venv, "bin"))
        os.symlink(sys.executable, os.path.join(venv, "bin", "python"))
        return os.path.join(venv, "bin", "python")

    def last(part: str, name: str, replace: Any = os.replace) -> None:
        if ended_before:
            raise SystemExit(143)
        replace(part, name)
        raise SystemExit(143)

    monkeypatch.setattr(layer, "_make", make)
    monkeypatch.setattr(layer, "_install", lambda *_: None)
    monkeypatch.setattr(layer, "_site_of", os.path.dirname)
    monkeypatch.setattr(os, "replace", last)
    plain = {"lines": [], "constraints": [], "code": None, "image": None, "build": True, "programs": []}
    for ended_before in (True, False):
        # Each in a folder of its own: the lock of the first is let go of by its end.
        building = layer.Layer({**plain, "layers": str(tmp_path / str(ended_before))}, str(tmp_path))
        with pytest.raises(SystemExit):
            building.get()
        left = list(tmp_path.glob("*/*/venv-*"))
        assert bool(left) != ended_before and (building._whole() is None) == ended_before
