"""What a job's training is told and what it needs installed, from the command line to the node and back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pip
import pytest

from tests.agent.wheels import blocking_project, wheel
from tests.cluster import engine
from tests.jobs.desk import Desk, eventually, living


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source folder that asks for a package, which it has with it."""
    folder = tmp_path / "src"
    wheel(folder / "wheels", "addon", "1.5")
    (folder / "requirements.txt").write_text("--no-index\n--find-links wheels\naddon  # ours\n")
    return folder


def test_hyperparameters_reach_the_command_and_no_reader(desk: Desk) -> None:
    """As variables, as arguments for a shell, and as a file of texts that only the user can read; secrets stay masked here."""
    show = 'echo "$PAI_HPS"; echo "$PAI_HPS_BATCH_SIZE"; eval "printf \'%s\\n\' $PAI_USER_ARGS"; '
    show += "cat $PAI_CONFIG_DIR/hyperparameters.json; stat -c %a $PAI_CONFIG_DIR/hyperparameters.json"
    said = ("--hp", "batch-size=32", "--hp", "note=a b", "--hp", "api_key=hu'sh", "--hp", "dims=[1, 2]", "--label", "team=vision")
    desk.submit("--nodes", "2", *said, "--command", show)
    for node in (0, 1):
        lines = desk.log(node).decode().splitlines()
        assert json.loads(lines[0]) == {"batch-size": 32, "note": "a b", "api_key": "hu'sh", "dims": [1, 2]}
        assert lines[1] == "32"
        assert lines[2:10] == ["--batch-size", "32", "--note", "a b", "--api_key", "hu'sh", "--dims", "[1, 2]"]
        assert json.loads(lines[10]) == {"batch-size": "32", "note": "a b", "api_key": "hu'sh", "dims": "[1, 2]"}
        assert lines[11] == "600"
    kept = [path for path in desk.at_rest().rglob("*") if path.is_file() and "logs" not in path.parts]
    assert not [path for path in kept if b"hu'sh" in path.read_bytes()]
    assert [event for event in desk.events() if event["type"] == "prepared"]
    assert desk.json("status", "latest")["labels"] == {"team": "vision"} == desk.json("list")["jobs"][0]["labels"]


def test_a_job_with_nothing_to_prepare_has_no_such_step(local: Desk) -> None:
    """It costs nothing: no request, no event.  What reads the hyperparameters finds that there are none."""
    local.submit("--command", "set -u; echo [$PAI_HPS] [$PAI_USER_ARGS]; cat $PAI_CONFIG_DIR/hyperparameters.json")
    assert not [event for event in local.events() if event["type"] == "prepared" or event.get("step") == "prepare"]
    assert local.log(0) == b"[{}] []\n{}\n"


@pytest.mark.parametrize("kind", ["local", pytest.param("remote", marks=pytest.mark.cluster)])
def test_the_source_folders_requirements_are_there_before_the_command(
    request: pytest.FixtureRequest, source: Path, kind: str
) -> None:
    """In the interpreter of PATH, as programs, and for the programs of the environment below; the next job finds them."""
    desk: Desk = request.getfixturevalue(kind)
    two = ("--hosts", "node1,node2") if kind == "remote" else ("--nodes", "2")
    show = "addon-run; python -c 'import addon, pytest; print(addon.VERSION)'; "
    show += '"$(head -1 $(command -v torchrun) | cut -c3-)" -c "import addon; print(addon.VERSION)"; '
    show += "echo $PYTHONPATH | grep -c :/mine"
    done = desk.submit(*two, "--env", "PYTHONPATH=/mine", "--source-dir", str(source), "--command", show)
    assert "requirements.txt: pip installs it on the nodes before the command starts" in done.stderr
    for node in (0, 1):
        assert desk.log(node).decode().splitlines() == ["addon 1.5", "1.5", "1.5", "1"]
    assert "Successfully installed addon-1.5" in (desk.folder() / "prepare" / "requirements-node-0.log").read_text()
    told = {event["type"]: event for event in desk.events()}["prepared"]["nodes"]
    assert [entry["layer"]["built"] for entry in told] == [True, True]
    done = desk.submit(*two, "--source-dir", str(source), "--", "addon-run")
    assert "requirements are in place: kept from an earlier job" in done.stderr
    told = {event["type"]: event for event in desk.events()}["prepared"]["nodes"]
    assert [entry["layer"]["built"] for entry in told] == [False, False] and not (desk.folder() / "prepare").exists()
    assert desk.log(1) == b"addon 1.5\n"


def test_requirements_may_be_said_and_switched_off(local: Desk, source: Path) -> None:
    """What is said wins over the file, and a log-in of an index is seen by nobody."""
    wheel(source / "wheels", "other")
    said = ("--requirement", "--extra-index-url https://me:hush@localhost:1/", "--requirement", "--no-index",
            "--requirement", "--find-links wheels", "--requirement", "other")  # fmt: skip
    local.submit("--source-dir", str(source), *said, "--", "other-run")
    assert local.log(0) == b"other 1.0\n"
    local.at_rest()
    for path in local.home.rglob("*"):
        assert not path.is_file() or b"hush" not in path.read_bytes(), path
    local.submit("--source-dir", str(source), "--requirement", "", "--command", "python -c 'import addon'", check=1)
    assert not [event for event in local.events() if event["type"] == "prepared"]
    done = local.submit("--source-dir", str(source), "--requirement", "-r gone.txt", "--", "true", check=2)
    assert "gone.txt cannot be read" in done.stderr


def test_what_cannot_be_installed_ends_the_job_before_its_start(local: Desk, source: Path) -> None:
    """With pip's words and what to do; nothing half-built stays."""
    (source / "requirements.txt").write_text("--no-index\nno-such-thing==9\n")
    done = local.submit("--source-dir", str(source), "--", "true", check=69)
    told = local.json("status", "latest")
    assert (told["status"], told["reason_code"]) == ("InitializeFailed", "RequirementsFailed")
    assert "No matching distribution found for no-such-thing==9" in told["reason_message"]
    assert "next: check name and version" in done.stderr
    assert not list(local.home.glob("node/layers/*/venv-*"))


def test_a_program_that_nothing_brings_is_missed_before_the_start(local: Desk, source: Path) -> None:
    """It might have come with the requirements, so it is looked for behind them."""
    done = local.submit("--source-dir", str(source), "--", "no-such-program", check=69)
    assert "there is no no-such-program in PATH, and none of the requirements brings it" in done.stderr


@pytest.mark.cluster
def test_a_node_without_pip_says_what_to_install(remote: Desk, source: Path) -> None:
    """node3 is a Debian with Python alone."""
    done = remote.submit("--hosts", "node3", "--source-dir", str(source), "--", "addon-run", check=69)
    assert "node3: /usr/bin/python3 has no pip" in done.stderr and "apt install python3-pip" in done.stderr


@pytest.mark.cluster
def test_inside_a_container_the_requirements_come_over_its_image(local: Desk, source: Path) -> None:
    """The image's own interpreter installs them; here it has no pip, so one is brought along."""
    engine.ensure_engine()
    image = engine.ensure_images(["bookworm"])["bookworm"]
    shutil.copytree(Path(pip.__file__).parent, source / "tools" / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    said = ("--image", f"docker://{image}", "--env", "PYTHONPATH=/ml/usercode/tools", "--source-dir", str(source))
    local.submit("--nodes", "2", *said, "--command", "addon-run; command -v python3")
    for node in (0, 1):
        first, second = local.log(node).decode().splitlines()
        assert first == "addon 1.5" and second.startswith(f"{local.home}/node/layers/")


def test_a_cancel_ends_an_installation_that_does_not_listen(local: Desk, source: Path, tmp_path: Path) -> None:
    """No process, and no half of an environment."""
    mark = tmp_path / "builds"
    blocking_project(source / "blocking", mark)
    (source / "requirements.txt").write_text("--no-index\n./blocking\n")
    process = local.start("--source-dir", str(source), "--", "true")
    eventually(mark.exists, "it builds")
    assert living(local.folder().name)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130 and local.json("status", "latest")["status"] == "Terminated"
    eventually(lambda: not living(local.folder().name), "no process")
    eventually(lambda: not list(local.home.glob("node/layers/*/venv-*")), "no half of an environment")
    eventually(lambda: not list(local.home.glob("node/layers/asked/*")), "no order of one")


def test_a_coordinator_killed_while_it_prepares_is_replaced(local: Desk, source: Path, tmp_path: Path) -> None:
    """The next one begins the installation anew; the old one's is gone."""
    mark = tmp_path / "builds"
    blocking_project(source / "blocking", mark)
    (source / "requirements.txt").write_text("--no-index\n./blocking\n")
    process = local.start("--source-dir", str(source), "--", "blocking-run")
    eventually(mark.exists, "it builds")
    os.kill(local.coordinator(), signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert local.log(0) == b"blocking 1\n"
    assert len([event for event in local.events() if event["type"] == "coordinator"]) == 2


def test_requirements_that_nobody_asks_for_any_more_are_removed(local: Desk, source: Path) -> None:
    """A month after the last job that did, by gc; those of a younger job stay."""
    local.submit("--source-dir", str(source), "--", "addon-run")
    (layer,) = (path for path in local.home.glob("node/layers/*") if path.name != "asked")
    local.run("gc", "--yes")
    assert layer.is_dir()
    month_ago = time.time() - 31 * 86400
    os.utime(layer / "used", (month_ago, month_ago))
    assert f"{layer.name}: requirements that no job has asked for in 31 days" in local.run("gc", "--yes").stdout
    assert not layer.exists()


def test_data_and_agents_that_nobody_wants_any_more_are_removed(local: Desk, source: Path, tmp_path: Path) -> None:
    """A month later; not data that a kept job's folder has links to, and not this version's agent."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("a")
    local.submit("--keep", "--input", f"train={data}", "--command", "cat $PAI_INPUT_TRAIN/a")
    (store,) = local.home.glob("node/inputs/*")
    (agent,) = local.home.glob("node/agents/*.pyz")
    other = agent.with_name("0" * 32 + ".pyz")
    shutil.copy(agent, other)
    shutil.copy(agent, other.with_suffix(".cpython-38"))
    month_ago = time.time() - 31 * 86400
    for path in (store / "used", agent, other):
        os.utime(path, (month_ago, month_ago))
    said = local.run("gc", "--yes").stdout
    assert f"node/agents/{other.stem}: an agent of another version, here for 31 days" in said and store.name not in said
    assert store.is_dir() and agent.exists() and not list(agent.parent.glob(f"{other.stem}*"))
    # The first one has removed the job's folder there, and with it the links.
    assert f"node/inputs/{store.name}: data that no job has read in 31 days" in local.run("gc", "--yes").stdout
    assert not store.exists()
