"""Record what torchrun really says: ``python tests/torchrun/record.py PYTHON OUT`` writes one folder per ending.

PYTHON is an interpreter with torch, OUT the folder to fill, such as tests/torchrun/reports/2.13.0.  Each ending gets
``node-<n>.err`` (torchrun's own stderr), ``node-<n>-rank-<local rank>.err`` (a worker's stderr) and ``exit`` (torchrun's exit
status on each node).  The interpreter's prefix is written as /opt/venv, the same wherever a record was made.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = """
import os, signal, sys, time

def deep(ending):
    if ending == "raise":
        raise ValueError("bad luck")
    if ending == "chained":
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("no such setting") from error
    if ending == "exit3":
        sys.exit(3)
    if ending in ("SIGKILL", "SIGSEGV", "SIGABRT"):
        os.kill(os.getpid(), getattr(signal, ending))

ending, rank = sys.argv[-1], int(os.environ["RANK"])
if ending == "recorded":
    from torch.distributed.elastic.multiprocessing.errors import record
    if rank == 1:
        record(deep)("raise")
if ending == "all":
    deep("raise")
if ending == "peer":
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if rank == 3:
        raise ValueError("bad luck of one")
    dist.all_reduce(torch.zeros(1))
if ending == "term":
    open(os.environ["READY"] + str(rank), "w").close()
elif rank == 1:
    deep("raise" if ending == "launch" else ending)
time.sleep(60)
"""

ALONE = ("raise", "chained", "exit3", "SIGKILL", "SIGSEGV", "SIGABRT", "recorded", "all")


class Recorder:
    """One interpreter's torchrun, in one scratch folder; every method records one ending."""

    def __init__(self, python: str, out: Path, scratch: Path) -> None:
        self.python, self.out, self.scratch = python, out, scratch
        self.script = scratch / "train.py"
        self.script.write_text(WORKER)

    def ending(self, name: str, *, module: str = "run", script: str = "train.py", nodes: int = 1, port: int = 0) -> None:
        """Run ``nodes`` torchruns of two workers each to their end."""
        port = port or _free_port()
        started = [self._start(name, module, script, rank, nodes, port) for rank in range(nodes)]
        codes = []
        for rank, process in enumerate(started):
            codes.append(process.wait(timeout=300))
            self._keep(name, rank)
        (self.out / name / "exit").write_text(" ".join(map(str, codes)) + "\n")

    def terminated(self) -> None:
        """TERM to torchrun while both workers run."""
        process = self._start("term", "run", "train.py", 0, 1, _free_port())
        ready = [self.scratch / f"ready{rank}" for rank in range(2)]
        while not all(path.exists() for path in ready):
            if process.poll() is not None:
                raise SystemExit("torchrun ended before its workers began")
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
        self._keep("term", 0)
        (self.out / "term" / "exit").write_text(f"{code}\n")

    def port_taken(self) -> None:
        """Node 0 cannot have the port."""
        with socket.socket(socket.AF_INET6) as taken:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            taken.bind(("::", 0))
            taken.listen()
            self.ending("port-taken", port=taken.getsockname()[1])

    def _start(self, name: str, module: str, script: str, rank: int, nodes: int, port: int) -> subprocess.Popen[bytes]:
        (self.out / name).mkdir(parents=True, exist_ok=True)
        words = [self.python, "-m", f"torch.distributed.{module}", f"--nnodes={nodes}", f"--node_rank={rank}"]
        words += ["--master_addr=127.0.0.1", f"--master_port={port}", "--nproc_per_node=2", script, name]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "TORCH"))}
        env |= {"PET_LOG_DIR": str(self._logs(name, rank)), "PET_REDIRECTS": "3", "PET_MONITOR_INTERVAL": "0.1"}
        env |= {"GLOO_SOCKET_IFNAME": "lo", "READY": str(self.scratch / "ready")}
        with open(self._err(name, rank), "wb") as err:
            return subprocess.Popen(words, cwd=self.scratch, env=env, stderr=err, stdout=subprocess.DEVNULL)

    def _logs(self, name: str, rank: int) -> Path:
        return self.scratch / "logs" / name / str(rank)

    def _err(self, name: str, rank: int) -> Path:
        return self.out / name / f"node-{rank}.err"

    def _keep(self, name: str, rank: int) -> None:
        self._clean(self._err(name, rank))
        for path in sorted(self._logs(name, rank).glob("*/attempt_0/*/stderr.log")):
            kept = self.out / name / f"node-{rank}-rank-{path.parent.name}.err"
            kept.write_bytes(path.read_bytes())
            self._clean(kept)

    def _clean(self, path: Path) -> None:
        prefix = str(Path(self.python).parent.parent)
        text = path.read_text(errors="replace").replace(prefix, "/opt/venv").replace(str(self.scratch), "/home/train/job")
        path.write_text(re.sub(r'[^\s"]*/versions/[\d.]+/lib/', "/usr/lib/", text))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Record every ending there is."""
    python, out = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(python, out, Path(scratch))
        for name in ALONE:
            recorder.ending(name)
        recorder.ending("missing-script", script="nowhere.py")
        recorder.ending("launch", module="launch")
        recorder.ending("peer", nodes=2)
        recorder.port_taken()
        recorder.terminated()


if __name__ == "__main__":
    main()
