"""Where the code blocks of pages are run: a folder with what their reader has, and a machine on which they are typed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from launcher.cluster import load_cluster, load_hostfile, load_job
from launcher.cluster.userfile import read_user_file
from tests.docs.blocks import Block
from tests.docs.pages import ROOT
from tests.jobs import desk

TRAINING = """import os
print("epoch 1: loss=0.5, acc: 90.0%", flush=True)
with open(os.path.join(os.environ["PAI_OUTPUT_MODEL"], "part-" + os.environ["RANK"]), "w") as file:
    file.write("weights")
"""
"""what stands for a training script: it imports nothing and is done at once.  tests/jobs/test_training.py trains"""
_USER_KEYS = {"default", "clusters", "job"}
_CLUSTER_KEYS = {"hosts", "images", "defaults", "slurm", "ssh", "master"}
"""keys by which a config of one's own and a cluster file are told from a job file"""


@dataclass(frozen=True)
class Scene:
    """Blocks that are run one after the other: under one heading of a page, or on all of it."""

    machines: str = "local"
    """local, ssh or slurm"""
    words: Mapping[str, str] = field(default_factory=dict)
    """what a reader would put in the place of words"""
    before: str = ""
    """what the reader has done already, for a shell"""
    store: bool = False
    """whether there is a server for s3://, with a bucket for each that is named"""


@dataclass
class Stage:
    """One folder, and the way to a shell in it."""

    folder: Path
    scene: Scene
    argv: Callable[[str], list[str]]
    """a script -> the process that runs it in the folder"""
    environment: dict[str, str]
    python: list[Block] = field(default_factory=list)
    printed: str = ""

    def furnish(self) -> None:
        """Put there what the reader has: sources, and the program itself."""
        for name in ("train_src/train_multinode.py", "src/train.py", "train.py", "data/train.bin", "shards/a", "shards/b"):
            if not (self.folder / name).exists():
                self._write(name, TRAINING)
        # make and pip only say what they would do: that what is asked of them is there.
        programs = {
            "launcher": f"{sys.executable} -m launcher",
            "make": f"{shutil.which('make')} -n -C {ROOT}",
            "pip": f"{sys.executable} -m pip --no-index --dry-run",
        }
        for name, words in programs.items():
            self._write(f"bin/{name}", f'#!/bin/sh\nPYTHONPATH={ROOT} exec {words} "$@"\n').chmod(0o755)
        if self.scene.before:
            self._shell(self.scene.before)

    def play(self, block: Block, not_run: Mapping[str, str]) -> None:
        """Run, load or compare one block; AssertionError says what is wrong with it."""
        text = block.text
        for word, meant in self.scene.words.items():
            text = text.replace(word, meant.replace("$STAGE", str(self.folder)))
        text = "".join(line for line in text.splitlines(keepends=True) if re.sub(r"\s+#.*", "", line).strip() not in not_run)
        if block.file:
            # A script's own first line comes first.
            self._write(block.file, text if not text.split("\n", 2)[1].startswith("#!") else text.split("\n", 1)[1])
        if block.kind == "shell" and not block.file:
            self.printed = self._shell(text)
        elif block.kind == "output":
            compare(text, self.printed)
        elif block.kind == "yaml":
            self._load(text)
        elif block.kind == "hostfile":
            assert load_hostfile(self._write("hostfile", text)).hosts
        elif block.kind == "json":
            json.loads(text)
        elif block.kind == "python" and not block.file:
            self.python.append(block)

    def finish(self) -> None:
        """Run the page's Python, all blocks in one process, each at its line of the page."""
        if not self.python:
            return
        program: list[str] = []
        for block in self.python:
            program += [""] * (block.line - 1 - len(program)) + block.text.splitlines()
        path = self._write(self.python[0].page.replace("/", "-") + ".py", "\n".join(program) + "\n")
        self._run([sys.executable, str(path)])

    def _shell(self, script: str) -> str:
        return self._run(self.argv("set -euo pipefail\n" + script))

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=desk.TRAINING, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}"
        return done.stdout

    def _load(self, text: str) -> None:
        """Read as the program would, by what the keys say that it is; of a part of a job file the rest is added."""
        keys = set(yaml.safe_load(text))
        if keys <= _USER_KEYS:
            read_user_file(self._write("config.yaml", text))
        elif keys & _CLUSTER_KEYS:
            load_cluster(self._write("a-cluster.yaml", text))
        else:
            load_job(self._write("a-job.yaml", text if keys & {"command", "script"} else f"{text}\ncommand: 'true'\n"))

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def compare(shape: str, printed: str) -> None:
    """Every line of ``shape`` was printed, … standing for anything."""
    lines = [line.rstrip() for line in printed.splitlines()]
    shapes = [line.rstrip() for line in shape.splitlines() if line.strip()]
    patterns = {line: ".*".join(map(re.escape, line.split("…"))) for line in shapes}
    missing = [line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, one) for one in lines)]
    assert not missing, f"not printed: {missing}\n{printed}"


def here(folder: Path, scene: Scene, **more: str) -> Stage:
    """A stage on this machine, with a home and a config of its own."""
    foreign = ("LAUNCHER_", "AWS_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "PAI_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{clean['PATH']}"
    places = {"LAUNCHER_HOME": f"{folder}/home", "HOME": f"{folder}/user", "XDG_CONFIG_HOME": f"{folder}/config"}
    environment = {**clean, **places, "PYTHONPATH": str(ROOT), "PATH": path, **more}
    return Stage(folder, scene, lambda script: ["bash", "-c", script], environment)
