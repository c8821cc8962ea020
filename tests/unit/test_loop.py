"""The coordinator's loop hears what is meant for it, from whom it is meant, and of every wish to cancel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.coordinator import loop
from launcher.coordinator.loop import Coordinator
from launcher.coordinator.owner import Owner
from launcher.model import to_json
from launcher.planning import Request, draft
from launcher.policy import Rules, Step
from launcher.store import Folder, Store, write_json
from tests.agent.far import PATIENCE


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """One that has its job, and does not run."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    plan = draft(Request(words=("true",), nodes=1), {}).plan
    folder = Store().create(plan.job_id)
    write_json(folder.plan, to_json(plan))
    with Owner(folder) as owner:
        made = Coordinator(folder, owner)
        made._record({"type": "created", "nodes": [{"rank": 0, "host": "here"}]})
        yield made


def test_what_an_abandoned_step_comes_to_is_no_answer_to_the_next(coordinator: Coordinator) -> None:
    """It may end long after it was given up, in a failure above all: its connections were closed."""
    release, old = threading.Event(), list[threading.Thread]()

    def first() -> list[dict[str, object]]:
        old.append(threading.current_thread())
        coordinator._told.put({"type": "cancel", "level": 1})
        release.wait()
        return [{"type": "broken", "step": "REACH", "reason_code": "NodesUnreachable", "message": "closed", "exit_code": 69}]

    def second() -> list[dict[str, object]]:
        release.set()
        old[0].join()
        return [{"type": "reached", "nodes": []}]

    assert coordinator._attend(first, Step.REACH) and not coordinator.view.reached
    coordinator.view.cancel = 0
    assert coordinator._attend(second, Step.REACH)
    assert coordinator.view.reached and coordinator.view.broken is None


def test_who_kills_a_job_that_may_have_begun_waits_for_its_nodes_to_be_reached(coordinator: Coordinator) -> None:
    """Nobody else can tell them; to give up and begin anew at every event that comes meanwhile would never end."""
    coordinator._record({"type": "starting", "attempt": 0})

    def reach() -> list[dict[str, object]]:
        coordinator._told.put({"type": "cancel", "level": 2})
        for done in (1, 2):
            coordinator._told.put({"type": "progress", "step": "reach", "done": done, "total": 2})
        return [{"type": "reached", "nodes": []}]

    assert coordinator._attend(reach, Step.REACH)
    assert coordinator.view.reached and coordinator.view.cancel == 2


def test_a_node_that_does_not_begin_keeps_no_other_from_being_killed(coordinator: Coordinator) -> None:
    """One whose file system hangs, say: it may be told when it is back, and the others wait for it with all of their GPUs."""
    coordinator._record({"type": "created", "nodes": [{"rank": 0, "host": "here"}, {"rank": 1, "host": "hangs"}]})
    coordinator._record({"type": "starting", "attempt": 0})
    posted, stopped = list[tuple[int, dict[str, object]]](), threading.Event()

    def link(rank: int) -> SimpleNamespace:
        def post(op: str, **arguments: object) -> None:
            posted.append((rank, {"op": op, **arguments}))
            stopped.set()

        return SimpleNamespace(post=post)

    coordinator._steps._fleet = SimpleNamespace(links={0: link(0), 1: link(1)})  # type: ignore[assignment]

    def start() -> list[dict[str, object]]:
        began = {"type": "started", "attempt": 0, "pid": 1, "time": 1.0}
        coordinator._told.put({"type": "agent", "node": 0, "event": began})
        coordinator._told.put({"type": "cancel", "level": 2})
        coordinator._told.put({"type": "note", "message": "still at it"})
        assert stopped.wait(PATIENCE)
        return [{"type": "following"}]

    assert coordinator._attend(start, Step.START)
    wish = {"op": "node_stop", "attempt": 0, "grace": 0, "reason": "cancel", "told": False}
    assert posted == [(0, wish)] and coordinator.view.following


def test_a_wish_to_cancel_is_heard_after_the_folder_could_not_be_read(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system whose server has its troubles."""
    looks, read = threading.Semaphore(0), Folder.cancel_level
    failing = True

    def level(self: Folder) -> int:
        looks.release()
        if failing:
            raise OSError(116, "Stale file handle")
        return read(self)

    monkeypatch.setattr(Folder, "cancel_level", level)
    threading.Thread(target=coordinator._watch_for_cancel, daemon=True).start()
    assert all(looks.acquire(timeout=PATIENCE) for _ in range(2))
    failing = False
    write_json(coordinator._folder.cancel, {"level": 1})
    assert coordinator._told.get(timeout=PATIENCE) == {"type": "cancel", "level": 1}
    coordinator._folder.root.rename(coordinator._folder.root.with_name("gone"))
    assert coordinator._told.get(timeout=PATIENCE) == {"type": "folder gone"}
    coordinator._folder.root.with_name("gone").rename(coordinator._folder.root)


def test_a_deadline_is_kept_on_a_machine_that_slept(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a number of seconds waits for as many more; so the clock is looked at now and then."""
    monkeypatch.setattr(loop, "_LOOK_SECONDS", 0.05)
    coordinator.view.started_at = coordinator._clock.now()
    coordinator._rules = Rules(max_run_time=8 * 3600.0)
    waiting = threading.Thread(target=coordinator._wait, daemon=True)
    waiting.start()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
