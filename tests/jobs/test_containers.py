"""A job in docker's containers: PAI's paths hold inside, and nothing of it is left, however it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import procs
from launcher.environments import Place, parse, wrap
from tests.agent.far import Node
from tests.cluster import engine
from tests.jobs.desk import PATIENCE, Desk, eventually

pytestmark = pytest.mark.cluster
MARK = "LAUNCHER_TEST_CONTAINERS"


@pytest.fixture(scope="module")
def image() -> str:
    """The fake cluster's own image: a Debian with python3, and no torch."""
    engine.ensure_engine()
    return engine.ensure_images(["bookworm"])["bookworm"]


@pytest.fixture
def desk(image: str, tmp_path: Path) -> Iterator[Desk]:
    """Nodes simulated here, with commands in containers; afterwards no container of theirs may be there, and no process."""
    made = Desk(tmp_path / "home", ("--backend", "local", "--image", f"docker://{image}", "--source-dir", str(tmp_path / "src")))
    (tmp_path / "src").mkdir()
    yield made
    jobs = [path.name for path in (made.home / "jobs").iterdir()] if made.home.is_dir() else []
    try:
        for job in jobs:
            eventually(lambda job=job: not left_of(job), f"nothing of {job}: {left_of(job)}")
    finally:
        made.end_everything()
        for name in [entry.split()[0] for job in jobs for entry in left_of(job) if not entry.startswith("process")]:
            engine.docker("rm", "--force", name)


def left_of(job: str) -> list[str]:
    """Containers, and processes by what their environment says, of a job."""
    said = engine.docker("ps", "--all", "--filter", f"label=launcher.job={job}", "--format", "{{.Names}} {{.Status}}")
    return [*said.splitlines(), *(f"process {pid}" for pid in procs.marked({"LAUNCHER_JOB_ID": job}))]


def write(tmp_path: Path, text: str) -> str:
    """A script in the source folder."""
    (tmp_path / "src" / "a.py").write_text(textwrap.dedent(text))
    return "a.py"


SLOW = """
    import signal, sys, time
    def save(*_):
        time.sleep(1)
        print("saved", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while True:
        time.sleep(1)
"""
STUBBORN = "trap 'echo no' TERM; echo ready; while :; do sleep 0.2; done"


def ready(desk: Desk, nodes: int = 1) -> None:
    """Wait until the command on every node has printed its word."""
    desk.happened("following")
    desk.printed(b"ready", *range(nodes))


def test_pais_paths_hold_inside_and_the_model_comes_out(desk: Desk, tmp_path: Path) -> None:
    """Two nodes, a command line with a word that has blanks, a secret, the model of both."""
    (tmp_path / "src" / "data.txt").write_text("from the source folder")
    write(
        tmp_path,
        """
        import json, os, pathlib, sys
        said = {name: value for name, value in os.environ.items()}
        out = pathlib.Path("/ml/output/model")
        assert os.environ["PAI_OUTPUT_MODEL"] == "/ml/output/model/"
        (out / ("node-" + os.environ["RANK"])).write_text(sys.argv[1])
        print(json.dumps({"env": said, "cwd": os.getcwd(), "data": open("data.txt").read(), "argv": sys.argv}))
        """,
    )
    variables = ("--env", "API_TOKEN=s3cret", "--env", "PATH=/usr/bin:/bin:/opt/x")
    desk.submit("--nodes", "2", *variables, "--", "python3", "a.py", "a b$c")
    told = json.loads(desk.log(1))
    assert told["cwd"] == told["env"]["PAI_WORKING_DIR"].rstrip("/") == "/ml/usercode"
    assert (told["data"], told["argv"]) == ("from the source folder", ["a.py", "a b$c"])
    assert told["env"]["PAI_CONFIG_DIR"] == "/ml/input/config/"
    assert (told["env"]["API_TOKEN"], told["env"]["PATH"]) == ("s3cret", "/usr/bin:/bin:/opt/x")
    assert (told["env"]["WORLD_SIZE"], told["env"]["RANK"]) == ("2", "1")
    assert {path.name: path.read_text() for path in (desk.folder() / "output" / "model").iterdir()} == {
        "node-0": "a b$c", "node-1": "a b$c",
    }  # fmt: skip
    assert b"s3cret" not in b"".join(path.read_bytes() for path in desk.at_rest().glob("*.json*"))


def test_a_model_tells_the_torch_of_its_image(desk: Desk, tmp_path: Path) -> None:
    """The interpreter inside is asked, which alone knows; one without any says that there is none."""
    desk.submit("--command", "echo x > $PAI_OUTPUT_MODEL/m")
    made_by = json.loads((desk.folder() / "output" / "model.json").read_text())["made_by"]
    assert made_by["torch"] is None and made_by["image"].startswith("docker://")
    about = tmp_path / "src" / "torch-1.12.1.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.12.1+cu113\n")
    desk.submit("--nodes", "2", "--command", "echo x > $PAI_OUTPUT_MODEL/m")
    made_by = json.loads((desk.folder() / "output" / "model.json").read_text())["made_by"]
    assert [node["torch"] for node in made_by["nodes"]] == ["1.12.1+cu113"] * 2 and made_by["torch"] == "1.12.1+cu113"


def test_data_is_read_at_pais_paths(desk: Desk, tmp_path: Path) -> None:
    """A folder that was brought, a single file, and a folder of the node that has links to another one in it."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a.txt").write_text("a")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "b.txt").symlink_to(tmp_path / "data" / "deep" / "a.txt")
    inputs = {"train": f"{tmp_path}/data", "one": f"{tmp_path}/data/deep/a.txt", "there": f"node:{tmp_path}/links"}
    words = [word for channel, source in inputs.items() for word in ("--input", f"{channel}={source}")]
    text = "cat $PAI_INPUT_TRAIN/deep/a.txt $PAI_INPUT_ONE $PAI_INPUT_THERE/b.txt; echo; echo $PAI_INPUT_TRAIN $PAI_INPUT_ONE"
    desk.submit(*words, "--command", f"{text}; touch $PAI_INPUT_TRAIN/c || touch $PAI_INPUT_THERE/c || echo read only")
    assert desk.log(0) == b"aaa\n/ml/input/data/train /ml/input/data/one/a.txt\nread only\n"


def test_no_value_is_seen_in_the_process_table(desk: Desk, tmp_path: Path) -> None:
    """`docker run --env NAME` takes them from its own environment."""
    job = desk.start("--env", "API_TOKEN=s3cret-of-mine", "--", "python3", write(tmp_path, SLOW))
    ready(desk)
    lines = [procs._read(pid, "cmdline") for pid in procs.marked({"LAUNCHER_JOB_ID": desk.folder().name})]
    assert any(b"--env\0API_TOKEN\0" in line for line in lines)
    assert not any(b"s3cret-of-mine" in line for line in lines)
    desk.run("cancel", "latest")
    assert job.wait() == 130


def test_a_failure_is_the_commands_own(desk: Desk) -> None:
    """Its exit code, and its last lines."""
    done = desk.submit("--command", "echo so it is >&2; exit 7", check=7)
    assert "7" in done.stderr
    assert b"so it is" in desk.log(0, "stderr")


def test_cancel_gives_the_training_its_grace(desk: Desk, tmp_path: Path) -> None:
    """TERM reaches it below a shell as well, once, and it may save."""
    write(tmp_path, SLOW)
    job = desk.start("--nodes", "2", "--command", "python3 a.py; echo after $?")
    ready(desk, 2)
    desk.run("cancel", "latest")
    assert job.wait() == 130
    # As outside, the shell does not go on to its next line.
    assert [desk.log(node) for node in range(2)] == [b"ready\nsaved\n"] * 2


def test_what_does_not_heed_is_killed_after_its_grace(desk: Desk) -> None:
    """Also where the init of the container is all that hears."""
    job = desk.start("--grace", "1s", "--command", STUBBORN)
    ready(desk)
    desk.run("cancel", "latest")
    assert job.wait() == 130
    assert b"no\n" in desk.log(0)


HELD = """
import os, sys, time
if "launcher.coordinator" in " ".join(sys.orig_argv):
    true, began = time.clock_gettime, time.clock_gettime(time.CLOCK_BOOTTIME)
    time.clock_gettime = lambda clock: true(clock) if os.path.exists({go!r}) else began
"""
"""makes no second pass for a coordinator until a file is there"""


def test_max_run_time_ends_the_container(desk: Desk, tmp_path: Path) -> None:
    """As any other command; the time begins to pass when the container is there, however long its start took."""
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "sitecustomize.py").write_text(HELD.format(go=str(tmp_path / "go")))
    said = ("--max-run-time", "1s", "--grace", "1s", "--command", STUBBORN)
    job = desk.start(*said, env={"PYTHONPATH": str(tmp_path / "held")})
    ready(desk)
    (tmp_path / "go").touch()
    assert job.wait(PATIENCE) == 143
    assert b"ready" in desk.log(0)


def kill_at_once(pids: list[int]) -> None:
    """kill -9; stopped at first, so that none does anything about the others' end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


@pytest.mark.parametrize("roles", [["agent"], ["warden"], ["agent", "warden"], ["pid"]], ids="+".join)
def test_no_container_outlives_who_looks_after_it(desk: Desk, roles: list[str]) -> None:
    """kill -9 of the agent, of its warden, of both at once, or of docker's own client."""
    job = desk.start("--command", STUBBORN, "--grace", "1s")
    ready(desk)
    kill_at_once([desk.pids(role, 0) for role in roles])
    if roles == ["warden"]:
        desk.run("cancel", "latest")
    assert job.wait(PATIENCE) != 0
    eventually(lambda: not left_of(desk.folder().name), f"left: {left_of(desk.folder().name)}")


def test_killed_at_once_after_the_start_it_leaves_no_container_either(desk: Desk) -> None:
    """While the engine is still making it."""
    job = desk.start("--command", "sleep 60")
    pid = desk.pids("agent", 0)
    os.kill(pid, signal.SIGKILL)
    assert job.wait(PATIENCE) != 0


def test_gc_ends_what_a_job_left(desk: Desk) -> None:
    """Both that look after the container killed, and the coordinator as well: nobody is left but who cleans up."""
    job = desk.start("--command", STUBBORN)
    ready(desk)
    kill_at_once([desk.coordinator(), desk.pids("agent", 0), desk.pids("warden", 0)])
    job.kill()
    name = desk.folder().name
    assert left_of(name)
    desk.run("cancel", name, check=None)
    desk.run("wait", name, check=None)
    eventually(lambda: not left_of(name), f"left: {left_of(name)}")


RANKS = """
    import os, pathlib, subprocess, sys
    folder = pathlib.Path(os.environ["PET_LOG_DIR"], "none_abc", "attempt_0")
    started = []
    for local in range(2):
        (folder / str(local)).mkdir(parents=True)
        with open(folder / str(local) / "stdout.log", "w") as out, open(folder / str(local) / "stderr.log", "w") as err:
            env = {**os.environ, "LOCAL_RANK": str(local), "RANK": str(local)}
            started.append(subprocess.Popen([sys.executable, "-c", sys.argv[1], str(local)], stdout=out, stderr=err, env=env))
    sys.exit(1 if any([one.wait() for one in started]) else 0)
"""


def test_ranks_have_their_logs_and_their_ends_are_seen(desk: Desk, tmp_path: Path) -> None:
    """What torchrun does inside is seen from outside: the processes by their variables, their logs through a mount."""
    (tmp_path / "src" / "torchrun").write_text("#!/usr/bin/env python3\n" + textwrap.dedent(RANKS))
    (tmp_path / "src" / "torchrun").chmod(0o755)
    text = """
import os, sys, time
print('rank', sys.argv[1], flush=True)
while not os.path.exists(os.environ['PAI_OUTPUT_MODEL'] + 'end-' + sys.argv[1]):
    time.sleep(0.05)
1 / int(sys.argv[1])
"""
    job = desk.start("--nproc-per-node", "2", "--", "./torchrun", text)
    desk.happened("following")
    for rank in range(2):
        eventually(lambda: len(told(desk, "workers", "workers")) == 2, "both are seen")
        (desk.home / "node" / "jobs" / desk.folder().name / "output" / "model" / f"end-{rank}").touch()
        eventually(lambda rank=rank: told(desk, "worker gone", "local_rank") == list(range(rank + 1)), "it is gone")
    assert job.wait(PATIENCE) == 1
    ranks = desk.folder() / "logs" / "node-0" / "ranks" / "attempt_0" / "restart_0"
    assert [(ranks / str(local) / "stdout.log").read_text() for local in range(2)] == ["rank 0\n", "rank 1\n"]
    assert "ZeroDivisionError" in (ranks / "0" / "stderr.log").read_text()


def told(desk: Desk, kind: str, key: str) -> list[object]:
    """What the agent has told of its workers so far, lists taken apart."""
    values = [event["event"][key] for event in desk.events() if event.get("event", {}).get("type") == kind]
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


def test_a_program_that_the_image_has_not_is_a_sentence_before_anything_starts(desk: Desk) -> None:
    """It is looked for inside: this machine may have it."""
    done = desk.submit("--command", "torchrun x.py", check=69)
    assert "there is no torchrun in docker://" in done.stderr
    assert not any(event["type"] == "starting" for event in desk.events())


def test_an_image_that_cannot_be_had_is_a_sentence_before_anything_starts(desk: Desk) -> None:
    """Nobody answers at that registry."""
    done = desk.submit("--image", "docker://localhost:9/nothing:1", "--", "true", check=69)
    assert "localhost:9/nothing:1 is not there and cannot be pulled" in done.stderr
    assert "pulls the image localhost:9/nothing:1" in done.stderr


def test_an_engine_that_does_not_answer_is_a_sentence(desk: Desk) -> None:
    """With the client's own words."""
    done = desk.submit("--", "true", env={"DOCKER_HOST": "unix:///nowhere.sock"}, check=69)
    assert "docker there cannot be used" in done.stderr
    assert "next: install docker there" in done.stderr


def test_a_users_own_docker_host_is_for_the_command_alone(desk: Desk) -> None:
    """What is set for the command does not turn the client that starts it."""
    desk.submit("--env", "DOCKER_HOST=tcp://elsewhere:1", "--command", "echo $DOCKER_HOST")
    assert desk.log(0) == b"tcp://elsewhere:1\n"


def test_a_runtime_that_is_missing_is_told_of_every_node_at_once(remote: Desk) -> None:
    """Before anything starts, with what to do."""
    done = remote.submit("--nodes", "2", "--image", "docker://t:1", "--", "true", check=69)
    assert done.stderr.count("there is no docker there") == 2
    assert "next: install docker there" in done.stderr
    assert remote.json("status", "latest")["status"] == "InitializeFailed"


def test_a_venv_of_the_nodes_is_what_the_command_runs_in(remote: Desk) -> None:
    """Its bin is first in PATH, and the script form takes its interpreter."""
    remote.submit("--nodes", "2", "--image", f"venv:{sys.prefix}", "--command", "python -c 'import sys; print(sys.prefix)'")
    assert [remote.log(node) for node in range(2)] == [f"{sys.prefix}\n".encode()] * 2


@pytest.mark.parametrize("command", ["python3 -uc '{}'", "true; env A=1 python3 -uc '{}'; true"])
def test_a_warning_reaches_the_training_inside(image: str, tmp_path: Path, command: str) -> None:
    """Below the init and shells, none of which knows what to do with it."""
    node = Node(tmp_path)
    link, _ = node.connect()
    (node.job / "input" / "config").mkdir(parents=True)
    (node.job / "output").mkdir()
    environment = parse(f"docker://{image}")
    assert environment is not None
    told = link.ask("environment_find", kind="docker", name=environment.name, programs=[])
    # the handler itself ends it: the warning may come before pause() is called, and nothing comes after
    heeds = 'import os, signal; signal.signal(signal.SIGUSR2, lambda *_: (os.write(1, b"heard"), os._exit(0)));'
    heeds += 'os.write(1, b"ready"); signal.pause()'
    place = Place(node.job_id, 0, 0, str(node.job), told)
    made = wrap(environment, ["/bin/sh", "-c", command.format(heeds)], node.marks, place)
    more = {"argv": list(made.argv), "env": dict(made.env), "stop": list(made.stop or ()), "drop": [], "bin": None}
    link.follow(node.following(), "node_start", **more)
    node.printed(b"ready")
    link.ask("node_warn", attempt=0, number=1, signal=int(signal.SIGUSR2), ranks=False)
    node.printed(b"heard")
    assert node.wait_for("warned")["told"][0]["name"] == "python3"
    assert node.wait_for("outcome")["exit_code"] == 0
    node.close()
    eventually(lambda: not left_of(node.job_id), f"left: {left_of(node.job_id)}")
