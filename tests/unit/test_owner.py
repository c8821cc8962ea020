"""Whose job it is: the owner's record against the process table, and against its heartbeat from elsewhere."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher import owner
from launcher.backends import detached
from launcher.coordinator import owner as holding
from launcher.coordinator.owner import AlreadyOwned, Owner
from launcher.store import Store, read_json, write_json


def test_a_living_process_is_alive_and_a_dead_one_is_not() -> None:
    """By pid and start time, so that a pid used again is not taken for it."""
    record = owner.here()
    assert owner.is_alive(record)
    assert not owner.is_alive({**record, "start_time": "1"})
    assert not owner.is_alive({**record, "boot_id": "another"})
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = {**record, "pid": child.pid, "start_time": owner.start_time(child.pid)}
    assert owner.is_alive(theirs)
    child.communicate(b"\n")
    assert not owner.is_alive(theirs)


def test_a_zombie_is_dead() -> None:
    """It has ended, though its parent has not looked yet."""
    reader, writer = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", "pass"], pass_fds=[writer])
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner.start_time(child.pid) is None
    child.wait()


@pytest.mark.parametrize("record", [None, {}])
def test_no_record_is_nobody(record: dict[str, object] | None) -> None:
    """A job whose coordinator never wrote has none."""
    assert not owner.is_alive(record)


@pytest.mark.parametrize(("age", "alive"), [(0.0, True), (29.9, True), (30.1, False), (1e6, False)])
def test_on_another_host_the_heartbeat_decides(age: float, alive: bool) -> None:
    """Its process table cannot be seen from here."""
    record = {**owner.here(), "host": "elsewhere", "heartbeat": 1000.0}
    assert owner.is_alive(record, now=1000.0 + age) is alive


def test_a_record_without_heartbeat_of_another_host_is_dead() -> None:
    """It was never alive long enough to beat."""
    assert not owner.is_alive({**owner.here(), "host": "elsewhere"})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    return Store()


def test_a_job_has_one_owner(store: Store) -> None:
    """A second one is refused while the first holds it, and welcome afterwards."""
    folder = store.create("a-20250101-000000-aaaa")
    with Owner(folder):
        assert owner.is_alive(read_json(folder.owner))
        with pytest.raises(AlreadyOwned), Owner(folder):
            raise AssertionError("two owners")
    with Owner(folder):
        pass


@pytest.mark.parametrize("started_before", [False, True])
def test_a_lock_that_is_held_for_a_moment_is_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, started_before: bool
) -> None:
    """Who looks after a job in Slurm's queue holds it while he writes; the job may be started in that moment."""
    monkeypatch.setattr(holding, "_PATIENCE", 60.0)
    folder = store.create("a-20250101-000000-aaaa")
    if started_before:
        write_json(folder.owner, {**owner.here(), "host": "elsewhere", "heartbeat": time.time()})
    with folder.lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.2, lambda: fcntl.flock(other, fcntl.LOCK_UN)).start()
        with Owner(folder):
            assert read_json(folder.owner)["pid"] == os.getpid()


def test_a_lock_that_stays_is_somebody_elses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator of another machine may hold it."""
    folder = store.create("a-20250101-000000-aaaa")
    monkeypatch.setattr(holding, "_PATIENCE", 0.1)
    with folder.lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(AlreadyOwned), Owner(folder):
            raise AssertionError("two owners")


def test_an_owner_that_was_replaced_says_so_and_leaves_the_record_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one on a laptop that slept, while somebody took over on another machine."""
    monkeypatch.setattr(holding, "HEARTBEAT_SECONDS", 0.02)
    folder = store.create("a-20250101-000000-aaaa")
    replaced = threading.Event()
    with Owner(folder) as held:
        held.on_replaced = replaced.set
        theirs = {**owner.here(), "host": "elsewhere", "heartbeat": 1.0}
        write_json(folder.owner, theirs)
        assert replaced.wait(60)
        held.report("key unavailable")
    assert read_json(folder.owner) == theirs


def test_a_record_that_somebody_removed_is_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another coordinator's comes in its place."""
    monkeypatch.setattr(holding, "HEARTBEAT_SECONDS", 0.02)
    folder = store.create("a-20250101-000000-aaaa")
    with Owner(folder):
        folder.owner.unlink()
        deadline = time.monotonic() + 60
        while read_json(folder.owner) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert read_json(folder.owner)["pid"] == os.getpid()


def test_the_owner_beats_and_tells_its_trouble(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`key unavailable` is read from the record; after the end nothing is written any more."""
    folder = store.create("a-20250101-000000-aaaa")
    monkeypatch.setattr(holding, "HEARTBEAT_SECONDS", 0.01)
    beats, in_turn = threading.Event(), threading.Lock()
    written: list[float] = []
    write = Owner._write

    def counting(self: Owner) -> None:
        with in_turn:  # the heart and a report write from two threads
            write(self)
            written.append(read_json(folder.owner)["heartbeat"])
        if len(written) > 3:
            beats.set()

    monkeypatch.setattr(Owner, "_write", counting)
    with Owner(folder) as held:
        held.report("key unavailable")
        assert read_json(folder.owner)["trouble"] == "key unavailable"
        assert beats.wait(60)
        held.report(None)
        assert read_json(folder.owner)["trouble"] is None
    assert written == sorted(written)


def test_a_coordinator_that_ends_in_the_moment_it_is_told_something_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the process table and the signal."""
    process = subprocess.Popen(["sleep", "100"])
    folder = store.create("a-20250101-000000-aaaa")
    record = {**owner.here(), "pid": process.pid, "start_time": owner.start_time(process.pid)}
    write_json(folder.owner, record)
    alive = owner.is_alive

    def then_it_ends(seen: dict[str, object]) -> bool:
        answer = alive(seen)
        process.kill()
        process.wait()
        return answer

    monkeypatch.setattr(owner, "is_alive", then_it_ends)
    assert detached.retire(folder)
    assert not owner.send(record, 0)
