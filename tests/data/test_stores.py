"""What nodes keep for later jobs is removed under nobody's feet."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from launcher.agent import layer, mirror, node, stores
from tests.agent.far import PATIENCE, eventually
from tests.data.peers import FakePeer

MONTH = 31 * 86400.0


def _waits(path: Path) -> bool:
    """Whether somebody waits for a lock on the file (`->` of proc_locks(5))."""
    number = f":{path.stat().st_ino} "
    return any("->" in line and number in line for line in Path("/proc/locks").read_text().splitlines())


def test_whoever_waited_for_what_was_removed_has_it_anew(tmp_path: Path) -> None:
    """Its lock went with it, and would be shared with nobody."""
    place = tmp_path / "content"
    first, seen = mirror.Sync(str(place)), list[bool]()
    first.lock(None)

    def second() -> None:
        other = mirror.Sync(str(place))
        other.lock(None)
        seen.append(os.path.isdir(other.tree) and stores._lock(place / "lock") is None)
        other.close()

    waiting = threading.Thread(target=second)
    waiting.start()
    eventually(lambda: _waits(place / "lock"), "somebody waits")
    node.remove(str(place))
    first.close()
    waiting.join(PATIENCE)
    assert seen == [True]


def test_an_installation_that_waited_for_what_was_removed_makes_it_anew(tmp_path: Path) -> None:
    """As a mirror's."""
    order = {"layers": str(tmp_path), "lines": [], "constraints": [], "code": None, "image": None}
    built, locks = layer.Layer(order, str(tmp_path)), list[int]()
    folder = Path(built._folder)
    first = built._lock()
    waiting = threading.Thread(target=lambda: locks.append(built._lock()))
    waiting.start()
    eventually(lambda: _waits(folder / "lock"), "somebody waits")
    node.remove(str(folder))
    os.close(first)
    waiting.join(PATIENCE)
    assert os.path.samestat(os.fstat(locks[0]), os.stat(folder / "lock"))
    os.close(locks[0])


def test_two_jobs_that_go_on_from_one_checkpoint_take_it_one_after_the_other(tmp_path: Path) -> None:
    """The first one moves it away, and the store has it no more when the second one's turn comes."""
    one, two = (FakePeer(tmp_path, job=f"job-{number}") for number in (1, 2))
    one.ask("inputs_begin", digest="a" * 64)
    held = one.session.held["mirror"]
    Path(held.tree, "last.pt").write_bytes(b"weights")
    held.look()
    held.manifest = {"files": {"last.pt": {"size": 7, "mode": 0o400, "sha256": "", "mtime": 0}}, "digest": "a" * 64}
    begun = list[dict[str, object]]()
    waiting = threading.Thread(target=lambda: begun.append(two.ask("inputs_begin", digest="a" * 64)))
    waiting.start()
    eventually(lambda: _waits(Path(held.mirror, "lock")), "the second one waits")
    one.ask("inputs_restore")
    waiting.join(PATIENCE)
    assert begun[0]["same"] is False and os.listdir(two.session.held["mirror"].tree) == []
    assert Path(one.session.layout.output("job-1"), "checkpoints", "last.pt").read_bytes() == b"weights"
    two.close()


@pytest.mark.parametrize("wanted", ["used", "linked", "no more"])
def test_what_a_job_wants_since_gc_has_looked_stays(tmp_path: Path, wanted: str) -> None:
    """A person was asked in between."""
    peer = FakePeer(tmp_path)
    layout, key = peer.session.layout, "b" * 64
    place = Path(layout.input(key))
    (place / "tree").mkdir(parents=True)
    stores.want(place)
    os.utime(place / "used", (time.time() - MONTH,) * 2)
    assert stores.old(peer.session, {"agent": "none", "days": 30})["stores"]["inputs"] == {key: 31}
    if wanted == "used":
        stores.want(place)
    if wanted == "linked":
        link = Path(layout.input_data("job-1", "data"))
        link.parent.mkdir(parents=True)
        link.symlink_to(place / "tree")
    told = stores.drop(peer.session, {"store": "inputs", "key": key, "days": 30})
    assert told == {"removed": wanted == "no more"} and place.exists() == (wanted != "no more")
