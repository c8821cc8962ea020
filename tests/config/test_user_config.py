"""The user's config: clusters by name, the default one, settings of jobs that say nothing, and where each value came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster.userfile import SETTINGS, load_user_config
from launcher.errors import UsageError, WrongArguments
from launcher.model import JobSpec
from launcher.planning import Draft, Request, draft, inventory
from launcher.session import Session, get_default_session, setup_default_session
from tests.config.conftest import Person

LAB = "default: lab\nclusters:\n  lab: ../../lab.yaml\n"


def planned(environment: dict[str, str] | None = None, **said: Any) -> Draft:
    return draft(Request(words=("prog",), **said), {**os.environ, **(environment or {})})


def refusal(**said: Any) -> str:
    with pytest.raises(UsageError) as caught:
        planned(**said)
    return str(caught.value)


def test_a_cluster_is_called_by_its_name(person: Person) -> None:
    """The plan has the name that was called, and says where it stands."""
    path = person.says(LAB)
    plan = planned(cluster="lab").plan
    assert (plan.cluster, [node.host.name for node in plan.nodes]) == ("lab", ["a", "b"])
    assert plan.origins["cluster"] == f"--cluster, a name of {path}:3"


def test_the_default_is_taken_where_nobody_names_a_cluster(person: Person) -> None:
    """A cluster.yaml here comes before it, and --backend local asks for none."""
    path = person.says(LAB)
    assert planned().plan.origins["cluster"] == f"the default of {path}:1, a name of {path}:3"
    assert planned(backend="local").plan.cluster == "local"
    (person.work / "cluster.yaml").write_text("name: here\nhosts: [x]\n")
    assert planned().plan.cluster == "here"


def test_a_file_wins_over_a_name_and_it_is_said(person: Person) -> None:
    """`./lab` is always the file."""
    path = person.says(LAB)
    (person.work / "lab").write_text("name: file\nhosts: [x]\n")
    assert planned(cluster="lab").plan.cluster == "file"
    assert planned(cluster="lab").plan.origins["cluster"] == f"--cluster, the file here, not the name of {path}:3"
    assert planned(cluster="./lab").plan.cluster == "file"


def test_a_variable_and_a_job_file_take_names_too(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file's bare name is a file beside it, else a name; a file where we stand is neither."""
    path = person.says(LAB)
    monkeypatch.setenv("LAUNCHER_CLUSTER", "lab")
    assert planned().plan.origins["cluster"] == f"LAUNCHER_CLUSTER, a name of {path}:3"
    monkeypatch.delenv("LAUNCHER_CLUSTER")
    job = person.home / "job.yaml"
    job.write_text("cluster: lab\ncommand: x\n")
    (person.work / "lab").write_text("hosts: [x]\n")
    plan = draft(Request(job_file=str(job)), {**os.environ}).plan
    assert (plan.cluster, plan.origins["cluster"]) == ("lab", f"{job}:1, a name of {path}:3")
    (person.home / "lab").write_text("name: beside\nhosts: [x]\n")
    assert draft(Request(job_file=str(job)), {**os.environ}).plan.cluster == "beside"


def test_local_is_always_this_machine(person: Person) -> None:
    """Whatever the default is; and it can be the default."""
    person.says(LAB)
    assert planned(cluster="local").plan.backend == "local"
    person.says("default: local\n")
    assert planned().plan.backend == "local"


def test_an_unknown_name_lists_what_there_is(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the nearest one, and the file where they stand."""
    path = person.says(LAB)
    text = refusal(cluster="lub")
    assert "no cluster is called 'lub'" in text and "did you mean lab?" in text
    assert f"lab: {person.home}" in text and str(path) in text
    person.config.unlink()
    assert f"there is no {path}" in refusal(cluster="lub")
    monkeypatch.setenv("LAUNCHER_CONFIG", "none")
    assert "LAUNCHER_CONFIG=none says that no names are known here: unset it, or name a file" in refusal(cluster="lub")


def test_a_named_cluster_file_that_is_wrong_says_who_named_it(person: Person) -> None:
    """Its own problems stand below."""
    person.says(LAB)
    (person.home / "lab.yaml").write_text("hosts: []\n")
    text = refusal(cluster="lab")
    assert "config.yaml:3: clusters.lab" in text and "hosts: empty" in text


def test_all_that_is_wrong_is_told_at_once(person: Person) -> None:
    """With file, line and column, as for cluster files."""
    path = person.says("defalt: x\ndefault: lub\nclusters: {lab: a.yaml, local: b, 'a b': c}\njob: {grace: soon, keep: 3}\n")
    text = refusal()
    for part in (
        f"{path}:1:1: defalt: unknown key; allowed: default, clusters, job (did you mean default?)",
        f"{path}:2:10: default: lub: no cluster of that name",
        ":3:25: clusters.local: another name",
        "clusters.a b: letters",
        "job.grace: soon: seconds, or",
        "job.keep: 3: true or false",
    ):
        assert part in text, text


SAID = {
    "nproc_per_node": ("4", 4),
    "forward_env": ("[MY_*, B]", ["MY_*", "B"]),
    "max_run_time": ("2h", 7200.0),
    "grace": ("1m", 60.0),
    "collect": ("[checkpoints]", ["checkpoints"]),
    "requeue": ("true", True),
    "max_requeues": ("4", 4),
    "keep": ("yes", True),
    "max_code_size": ("2GiB", 2 << 30),
}


def test_every_setting_is_read(person: Person) -> None:
    """From the file, and from the variable of its name; and every one is an option of submit."""
    from launcher.cluster.userfile import said_by_variables

    assert set(SAID) == set(SETTINGS)
    person.says("job:\n" + "".join(f"  {name}: {text}\n" for name, (text, _) in SAID.items()))
    expected = {name: value for name, (_, value) in SAID.items()}
    assert load_user_config({**os.environ}).job == expected
    texts = {name: text.strip("[]").replace(" ", "") for name, (text, _) in SAID.items()}
    assert said_by_variables({f"LAUNCHER_{name.upper()}": text for name, text in texts.items()}) == expected


def test_precedence(person: Person) -> None:
    """Flag > job file > variable > cluster file > user config > built-in, each with its origin."""
    path = person.says(LAB + "job:\n  grace: 60\n  max_requeues: 5\n")
    job = person.work / "job.yaml"
    job.write_text("command: x\ngrace: 40\n")

    def grace(**said: Any) -> tuple[float, str]:
        environment = said.pop("environment", {})
        plan = draft(Request(**said), {**os.environ, **environment}).plan
        return plan.spec.grace, plan.origins["grace"]

    assert grace(job_file=str(job), grace=50.0, environment={"LAUNCHER_GRACE": "45"}) == (50.0, "--grace")
    assert grace(job_file=str(job), environment={"LAUNCHER_GRACE": "45"}) == (40.0, f"{job}:2")
    assert grace(words=("x",), environment={"LAUNCHER_GRACE": "45"}) == (45.0, "LAUNCHER_GRACE")
    assert grace(words=("x",)) == (60.0, f"{path}:5")
    person.says(LAB)
    assert grace(words=("x",)) == (JobSpec.grace, "built-in")


def test_the_cluster_file_wins_over_the_user_config(person: Person) -> None:
    """In what Slurm is asked for, and in variables."""
    person.says(LAB + "job:\n  max_requeues: 5\n  env: {A: mine, C: mine}\n")
    (person.home / "lab.yaml").write_text("backend: slurm\nslurm: {max_requeues: 3}\n")
    plan = planned().plan
    assert (plan.spec.max_requeues, plan.origins["max_requeues"]) == (3, str(person.home / ".config/launcher/../../lab.yaml"))
    assert planned({"LAUNCHER_MAX_REQUEUES": "7"}).plan.spec.max_requeues == 7
    (person.home / "lab.yaml").write_text("hosts: [a]\ndefaults: {env: {A: cluster}}\n")
    drafted = planned(env={"C": "flag"})
    assert drafted.environment == {"all": {"C": "flag"}, "each": {}, "nodes": {"0": {"A": "cluster", "C": "mine"}}}


def test_a_secret_in_the_config_is_masked_in_the_plan(person: Person) -> None:
    """And reaches the nodes."""
    person.says("job: {env: {MY_TOKEN: hush}}\n")
    drafted = planned()
    assert dict(drafted.plan.nodes[0].host.env) == {"MY_TOKEN": "****"} and "hush" in str(drafted.environment)


def test_wrong_variables_are_told_together(person: Person) -> None:
    """With what would have been right."""
    with pytest.raises(UsageError) as caught:
        planned({"LAUNCHER_GRACE": "soon", "LAUNCHER_KEEP": "7"})
    assert "LAUNCHER_GRACE=soon: seconds, or" in str(caught.value) and "LAUNCHER_KEEP=7: true or false" in str(caught.value)


def test_another_config_can_be_named(person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By LAUNCHER_CONFIG; `none` is none, and a file that is not there an error."""
    person.says("job: {grace: 1}\n")
    other = tmp_path / "other.yaml"
    monkeypatch.setenv("LAUNCHER_CONFIG", str(other))
    assert "LAUNCHER_CONFIG names a file that is not there" in refusal()
    monkeypatch.setenv("LAUNCHER_CONFIG", "~no-such-user/c.yaml")
    assert "LAUNCHER_CONFIG: ~no-such-user/c.yaml: there is no user no-such-user here" in refusal()
    monkeypatch.setenv("LAUNCHER_CONFIG", str(other))
    other.write_text("job: {grace: 2}\n")
    assert planned().plan.spec.grace == 2
    monkeypatch.setenv("LAUNCHER_CONFIG", "none")
    assert planned().plan.spec.grace == JobSpec.grace


def test_a_session_names_what_the_command_line_would_take(person: Person) -> None:
    """Without any inventory that is `local`; a default one can be set for the rest of a program."""
    assert Session().workspace_name == "local" == Session().workspace_id
    person.says(LAB)
    assert get_default_session().workspace_name == "lab" and get_default_session() is get_default_session()
    assert setup_default_session(cluster="local").workspace_name == "local" == get_default_session().workspace_name
    assert setup_default_session(backend="local").request == Request(backend="local")
    assert setup_default_session().workspace_name == "lab" == inventory(Session().request).name
    with pytest.raises(UsageError, match="no cluster is called 'nope'"):
        setup_default_session(cluster="nope")
    assert Session(cluster="lab").config_path == person.config


def test_arguments_of_the_cloud_are_warned_about(person: Person) -> None:
    """And others refused."""
    with pytest.warns(UserWarning, match="network, oss_bucket_name, region_id: without meaning"):
        Session(region_id="cn-hangzhou", oss_bucket_name="b", network="VPC", access_key_id=None)
    with pytest.warns(UserWarning, match="region_id: without meaning") as told:
        setup_default_session(region_id="cn-hangzhou")
    assert told[0].filename == __file__
    with pytest.raises(UsageError, match="clutser: a session has none; it has cluster and backend"):
        Session(clutser="lab")


def test_what_a_session_cannot_be_made_of(person: Person) -> None:
    """All of it at once, and at once: not when the first job is submitted."""
    with pytest.raises(WrongArguments) as told:
        setup_default_session(5, "k8s", regoin_id="x")  # type: ignore[arg-type]
    assert [problem.partition(":")[0] for problem in told.value.problems] == ["regoin_id", "cluster", "backend"]
    assert Session(cluster=person.home / "lab.yaml").workspace_name == "its-own"
