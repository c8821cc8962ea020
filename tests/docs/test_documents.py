"""Keys, event types, paths and codes in the pages are those of a real job."""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import fields

import pytest

from launcher import errors, policy
from launcher.model import JobSpec, Plan
from launcher.preflight.report import Finding
from launcher.status import Status
from tests.docs.conftest import Jobs, launcher
from tests.docs.pages import ROOT, code, first_column, rows, section, text_of


def documented(heading: str, *, table: int = 0) -> set[str]:
    """The keys in one table of a section of json.md."""
    tables = re.split(r"\n(?!\|)", section("docs/json.md", heading))
    return set(first_column([part for part in tables if part.lstrip().startswith("|")][table]))


def test_status_document(jobs: Jobs) -> None:
    """status -o json has the keys of its table, so have its nodes and its failure."""
    told = jobs.json("status", jobs.bad)
    heading = "status, and the end of submit, attach, wait, cancel"
    assert documented(heading) == set(told) - {"schema_version"}
    assert documented(heading, table=1) == set(told["nodes"][0])
    assert documented(heading, table=2) == set(told["failure"])
    assert (told["status"], told["reason_code"], told["exit_code"]) == ("Failed", "CommandFailed", 3)


def test_reason_codes() -> None:
    """json.md has the reason codes that the code gives, and no others."""
    names = ("policy", "verdict", "api", "backends/standing", "backends/batch", "backends/making")
    names += ("coordinator/steps", "coordinator/loop", "coordinator/layer", "coordinator/data")
    sources = [ROOT / "launcher" / f"{name}.py" for name in names]
    words = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"([A-Z][a-z]+)+", node.value)
    }
    kinds = {status.value for status in Status}
    types = set(re.findall(r"^class (\w+)", "".join(path.read_text() for path in sources), re.M))
    from launcher.slurm.states import STATES

    # Where the batch step's own end, or none, is told otherwise.
    told = {"Running", "Completing", "Completed", "Failed"}
    slurms = {state.reason_code for state in STATES} - told
    words -= {"ClusterName"}
    heading = "status, and the end of submit, attach, wait, cancel"
    assert documented(heading, table=3) == (words - kinds - types - told) | slurms


def test_list_and_model_data_documents(jobs: Jobs) -> None:
    """list and model-data have the documented keys."""
    (first, second) = jobs.json("list")["jobs"]
    same = set(code(section("docs/json.md", "list").partition("|")[0])) - {"launcher list -o json", "jobs"}
    assert same | documented("list") == set(first) == set(second)
    assert documented("model-data") | {"schema_version"} == set(jobs.json("model-data", jobs.good))
    manifest = json.loads((jobs.home / "jobs" / jobs.good / "output/model.json").read_text())
    assert documented("model-data", table=1) == set(manifest) - {"schema_version"}
    cells = {row[0].strip("`"): set(re.findall(r"`([^`]+)`", row[2])) for row in rows(section("docs/json.md", "model-data"))}
    assert set(manifest["files"][0]) == cells["files"] - {"output/"}
    assert set(manifest["left"][0]) == cells["left"]


def test_log_and_event_lines(jobs: Jobs) -> None:
    """logs and events print objects with the documented keys."""
    assert documented("logs") == set(jobs.lines("logs", jobs.good)[0])
    for number, event in enumerate(jobs.lines("events", jobs.good)):
        assert event["n"] == number and {"time", "type"} <= set(event)


def test_nodes_and_dry_run_documents(jobs: Jobs) -> None:
    """nodes and submit --dry-run have the documented keys."""
    told = jobs.json("nodes", "--hosts", "a,b")
    page = set(code(section("docs/json.md", "nodes")))
    assert set(told) - {"schema_version"} | set(told["hosts"][0]) | set(told["ssh"]) | set(told["master"]) <= page
    plan = jobs.json("submit", "--dry-run", "--backend", "local", "--command", "true")
    assert documented("submit --dry-run") == set(plan) - {"schema_version"} == {field.name for field in fields(Plan)}
    assert {field.name for field in fields(JobSpec)} <= set(code(section("docs/json.md", "submit --dry-run")))


def test_check_document(jobs: Jobs) -> None:
    """check has the documented keys, its kinds are those of json.md and of the page."""
    told = jobs.json("check", "--backend", "local")
    assert documented("check") == set(told) - {"schema_version"}
    assert set(told["nodes"][0]) == documented("check", table=1)
    finding = {field.name for field in fields(Finding)} - {"where"}
    assert documented("check", table=2) == finding | {"hosts"}
    source = "".join(path.read_text() for path in (ROOT / "launcher/preflight").glob("*.py"))
    found = set(re.findall(r'Finding\(\s*"(\w+)"|_renamed\("(\w+)"', source))
    kinds = {word for pair in found for word in pair if word} | set(re.findall(r'"(Job\w+)"', source))
    assert set(first_column(section("docs/check.md", "What is a warning"))) == kinds
    tree = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.NodeError)]
    known = {kind.__name__ for kind in tree} - {"NodeError"} | {"NoMasterAddress", "PortClosed", "TorchDiffers", "NoTorch"}
    assert known <= set(code(section("docs/json.md", "check")))


def event_table() -> dict[str, set[str]]:
    """{type: words of its row} as ARCHITECTURE.md says."""
    found: dict[str, set[str]] = {}
    for row in rows(section("ARCHITECTURE.md", "The life of a job, in events")):
        for name in re.findall(r"`([^`]+)`", row[0]):
            found[name] = set(re.findall(r"\w+", row[1]))
    return found


def test_event_types() -> None:
    """ARCHITECTURE.md has every event type that the fold knows, and the two that say nothing to it."""
    assert set(event_table()) == set(policy._FOLDS) | {"note", "progress"}


def test_agent_event_types() -> None:
    """... and every type of an agent's own events."""
    source = "".join(path.read_text() for path in (ROOT / "launcher/agent").glob("*.py"))
    types = set(re.findall(r"(?:append|_tell)\(\s*\"([a-z ]+)\"", source))
    said = section("ARCHITECTURE.md", "The life of a job, in events").partition("An agent's event has")[2]
    kinds = {"exited", "not started", "agent lost", "rebooted"}
    assert set(code(said)) - {"type", "attempt", "time"} == types | kinds


def test_event_keys(jobs: Jobs) -> None:
    """The events of real jobs have no key that their row does not name."""
    table = event_table()
    for event in [*jobs.lines("events", jobs.good), *jobs.lines("events", jobs.bad)]:
        assert set(event) - {"n", "time", "type"} <= table[event["type"]], event
        for entry in event.get("nodes", []):
            assert set(entry) <= table[event["type"]], event


def test_job_folder(jobs: Jobs) -> None:
    """Every file of a real job's folder stands in ARCHITECTURE.md, and env.json is gone at the end."""
    said = [name.rstrip("/") for name in code(section("ARCHITECTURE.md", "The job folder"))]
    here = {path.name for path in (jobs.home / "jobs" / jobs.good).iterdir()}
    tops = {name.partition("/")[0] for name in said}
    assert here <= tops and "env.json" not in here
    assert {path.name for path in (jobs.home / "jobs" / jobs.good / "logs/node-0").iterdir()} <= {*said, "ranks"}


def test_node_layout(jobs: Jobs) -> None:
    """What a job leaves on its node after a failure lies where ARCHITECTURE.md says."""
    said = section("ARCHITECTURE.md", "On a node")
    top = jobs.home / "node"
    # Neither of the jobs had requirements or inputs.
    assert {path.name for path in top.iterdir()} | {"layers", "inputs"} == set(re.findall(r"^\| `(\w+)/<", said, re.M))
    spool = top / "jobs" / jobs.bad / "rank-1/spool"
    for path in spool.iterdir():
        assert path.name.replace("-0", "-<attempt>") in said.replace("ranks/", "ranks")


def test_environment_page(jobs: Jobs) -> None:
    """Each variable that the launcher sets on a node stands in environment.md; the masked one is nowhere readable."""
    log = (jobs.home / "jobs" / jobs.good / "logs/node-1/stdout.log").read_text()
    seen = {line.partition("=")[0] for line in log.splitlines() if re.match(r"\w+=", line)}
    page = set(code(text_of("docs/environment.md")))
    assert seen - set(os.environ) - {"PWD", "DOCS_TOKEN", "SHLVL", "OLDPWD", "_", "XDG_RUNTIME_DIR"} <= page
    assert "DOCS_TOKEN=hush" in log
    folder = jobs.home / "jobs" / jobs.good
    assert not any("hush" in path.read_text() for path in folder.glob("*.json*"))


def test_environment_rules() -> None:
    """Each pattern of variables that are dropped, taken along, or kept here stands in environment.md."""
    from launcher import environ

    page = set(code(text_of("docs/environment.md")))
    patterns = {*environ.DROPPED, *environ.ALLOWED, *environ._NEVER, *(name.strip("*") for name in environ._NOT_UNASKED)}
    assert patterns - {"_"} | {name.strip("*") for name in environ._SECRET} <= page


@pytest.mark.parametrize("schema", ["cluster", "job"])
def test_keys_of_files(schema: str) -> None:
    """cluster-yaml.md names every key of the schemas."""

    def keys(node: object) -> set[str]:
        if isinstance(node, list):
            return {key for item in node for key in keys(item)}
        if not isinstance(node, dict):
            return set()
        return set(node.get("properties", {})) | {key for item in node.values() for key in keys(item)}

    shape = json.loads((ROOT / f"launcher/schemas/{schema}.schema.json").read_text())
    assert keys(shape) <= set(code(text_of("docs/cluster-yaml.md")))


def test_exit_codes(jobs: Jobs) -> None:
    """The table of exit codes has those of the error tree, and real commands exit as it says."""
    said = {row[0] for row in rows(section("docs/cli.md", "Exit codes"))}
    tree = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.LauncherError)]
    assert {str(kind.exit_code) for kind in tree} | {"0", "74", "75", "130", "141", "143"} <= said
    assert launcher(jobs.home, "wait", jobs.bad).returncode == 3
    assert launcher(jobs.home, "status", "nope").returncode == 2
    assert launcher(jobs.home, "submit", "--hosts", "127.0.0.1:1", "--command", "true").returncode == 69


def test_status_words(jobs: Jobs) -> None:
    """Each status of PAI's stands in json.md, but for the one that is never seen."""
    page = section("docs/json.md", "status, and the end of submit, attach, wait, cancel")
    assert {status.value for status in Status} - {"Creating"} <= set(code(page))
