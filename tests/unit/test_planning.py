"""From what a person said to a plan: precedence, origins, and a sentence for everything that cannot be."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import UsageError
from launcher.model import Command, Plan, from_json, to_json
from launcher.planning import Draft, Request, draft, inventory, read_env_file

VERBATIM = (
    "torchrun --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT --nnodes=$WORLD_SIZE --node_rank=$RANK "
    "--nproc_per_node=2 train_multinode.py --total_epochs 10 --save_every 5"
)

CLUSTER = """
name: lab
backend: ssh
hosts:
  - {name: a, gpus: 8, instance_type: big}
  - {name: b, gpus: 8, instance_type: big}
  - {name: c, gpus: 2, instance_type: small, env: {NCCL_IB_HCA: mlx5, SITE_TOKEN: t0p}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a source folder, and nobody's variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAUNCHER_CLUSTER", raising=False)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    return tmp_path


@pytest.fixture
def lab(here: Path) -> str:
    (here / "lab.yaml").write_text(CLUSTER)
    return str(here / "lab.yaml")


def planned(environment: dict[str, str] | None = None, **said: Any) -> Draft:
    said.setdefault("words", ("prog", "x"))
    return draft(Request(**said), environment or {})


def refusal(**said: Any) -> str:
    with pytest.raises(UsageError) as caught:
        planned(**said)
    assert caught.value.exit_code == 2
    return str(caught.value)


# --- The command ---


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("train.py", "--x", "a b"), Command(script=("train.py", "--x", "a b"))),
        (("-m", "pkg.train", "1"), Command(script=("-m", "pkg.train", "1"))),
        (("--module", "pkg.train"), Command(script=("--module", "pkg.train"))),
        (("hostname",), Command(argv=("hostname",))),
        (("bash", "-c", "echo $RANK"), Command(argv=("bash", "-c", "echo $RANK"))),
    ],
)
def test_words_are_a_script_for_torchrun_or_a_program(words: tuple[str, ...], command: Command) -> None:
    """A .py file or -m goes to torchrun, any other program runs as it is, once per node."""
    assert planned(words=words, source_dir="src").plan.spec.command == command


def test_a_command_is_kept_word_for_word() -> None:
    """Nothing here looks into it, but for the number of processes."""
    plan = planned(words=None, command=Command(shell=VERBATIM)).plan
    assert plan.spec.command.shell == VERBATIM
    assert (plan.spec.nproc_per_node, plan.origins["nproc_per_node"]) == (2, "the command's own --nproc_per_node")


def test_a_number_that_was_said_wins_over_the_commands_own() -> None:
    """Then NPROC_PER_NODE says what the person said."""
    plan = planned(words=None, command=Command(shell=VERBATIM), nproc_per_node=4).plan
    assert (plan.spec.nproc_per_node, plan.origins["nproc_per_node"]) == (4, "--nproc-per-node")


def test_auto_is_nobodys_number() -> None:
    """Each node counts for itself later."""
    assert planned(nproc_per_node="auto").plan.spec.nproc_per_node is None
    assert planned().plan.spec.nproc_per_node is None


def test_more_processes_than_the_command_starts_are_warned_about() -> None:
    """A plain command runs once per node, whatever the number says."""
    assert "runs once per node" in " ".join(planned(words=("python", "x"), nproc_per_node=2).warnings)
    assert planned(words=("torchrun", "x.py"), nproc_per_node=2).warnings == ()
    assert planned(words=("train.py",), source_dir="src", nproc_per_node=2).warnings == ()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (Command(script=("sub/train.py",)), "train"),
        (Command(script=("-m", "pkg.train")), "pkg"),
        (Command(argv=("/bin/hostname",)), "hostname"),
        (Command(shell="torchrun x.py"), "torchrun"),
        (Command(argv=("/",)), "job"),
    ],
)
def test_a_job_without_a_name_is_named_after_its_command(here: Path, command: Command, name: str) -> None:
    """And a command with nothing to be named after is a job."""
    (here / "src" / "sub").mkdir()
    (here / "src" / "sub" / "train.py").write_text("")
    plan = planned(words=None, command=command, source_dir="src").plan
    assert plan.spec.name == name and re.fullmatch(name + r"-\d{8}-\d{6}-[a-z]{4}", plan.job_id)


REFUSALS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("no command", {"words": None}, ("there is no command", "--command")),
    ("an empty command", {"words": None, "command": Command(shell="")}, ("there is no command", "--command")),
    ("a blank command", {"words": None, "command": Command(shell=" \n ")}, ("there is no command", "--command")),
    ("nothing after --", {"words": ()}, ("nothing after `--`", "script")),
    ("two commands", {"command": Command(shell="x")}, ("two commands", "keep one")),
    ("an expanded variable", {"words": ("torchrun", "--master_addr=", "t.py")}, ("names no master", "single quotes")),
    ("a script and no folder", {"words": ("train.py",)}, ("train.py", "--source-dir")),
    ("a script not in the folder", {"words": ("trian.py",), "source_dir": "src"}, ("no trian.py", "train.py", "src")),
    ("no nodes", {"nodes": 0}, ("--nodes 0", "at least one")),
    ("less than no nodes", {"nodes": -1}, ("--nodes -1",)),
    ("too many simulated nodes", {"nodes": 65}, ("--nodes 65", "at most 64")),
    ("no processes", {"nproc_per_node": 0}, ("--nproc-per-node 0", "at least 1", "auto")),
    ("a word for a number", {"nproc_per_node": "gpu"}, ("--nproc-per-node gpu", "auto")),
    ("two inventories", {"cluster": "a.yaml", "hostfile": "b"}, ("--cluster", "--hostfile", "keep one")),
    ("an inventory that is not there", {"cluster": "none.yaml"}, ("none.yaml",)),
    ("a hostfile that is not there", {"hostfile": "none"}, ("none",)),
    ("ssh to nobody", {"backend": "ssh"}, ("--backend ssh", "--hosts")),
    ("a fixed variable", {"env": {"RANK": "1", "WORLD_SIZE": "2"}}, ("launcher's own", "RANK", "WORLD_SIZE", "--nodes")),
    ("a port that is none", {"env": {"MASTER_PORT": "http"}}, ("MASTER_PORT=http", "1 to 65535", "leave it out")),
    ("a port beyond all", {"env": {"MASTER_PORT": "65536"}}, ("MASTER_PORT=65536", "leave it out")),
    ("an env file that is not there", {"env_file": ("none.env",)}, ("none.env", "cannot be read")),
    ("a job file that is not there", {"job_file": "none.yaml"}, ("none.yaml",)),
]


@pytest.mark.parametrize(("what", "said", "texts"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_is_a_sentence(what: str, said: dict[str, Any], texts: tuple[str, ...]) -> None:
    """It names what was said, and the way out."""
    text = refusal(**said)
    assert all(part in text for part in texts), text


def test_more_nodes_than_hosts_lists_the_hosts(lab: str) -> None:
    """And with a label says so."""
    text = refusal(cluster=lab, nodes=4)
    assert "--nodes 4, but there are 3 hosts" in text and "c (c)" in text
    assert "2 hosts with instance_type big" in refusal(cluster=lab, nodes=3, instance_type="big")


# --- The inventory ---


def test_without_any_inventory_nodes_are_simulated_here() -> None:
    """With our own interpreter, below LAUNCHER_HOME; one node unless more are asked for."""
    plan = planned(nodes=3).plan
    assert (plan.backend, [node.host.name for node in plan.nodes]) == ("local", ["local-0", "local-1", "local-2"])
    assert {(node.host.python, node.host.workdir) for node in plan.nodes} == {(sys.executable, str(Path("home").absolute()))}
    assert len(planned().plan.nodes) == 1


def test_cluster_yaml_of_the_working_directory_is_found_and_named(here: Path) -> None:
    """A flag and the variable go before it."""
    (here / "cluster.yaml").write_text(CLUSTER)
    (here / "other.yaml").write_text(CLUSTER.replace("lab", "other"))
    plan = planned().plan
    assert (plan.cluster, plan.origins["cluster"]) == ("lab", "./cluster.yaml")
    assert planned(cluster="other.yaml").plan.cluster == "other"
    assert planned(backend="local").plan.backend == "local"


def test_the_variable_names_an_inventory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LAUNCHER_CLUSTER stands between the flag and the file."""
    (here / "cluster.yaml").write_text(CLUSTER)
    (here / "other.yaml").write_text(CLUSTER.replace("lab", "other"))
    monkeypatch.setenv("LAUNCHER_CLUSTER", str(here / "other.yaml"))
    plan = planned().plan
    assert (plan.cluster, plan.origins["cluster"]) == ("other", "LAUNCHER_CLUSTER")


def test_a_missing_inventory_is_never_a_silent_local_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for and is not there is an error."""
    monkeypatch.setenv("LAUNCHER_CLUSTER", str(here / "none.yaml"))
    assert "none.yaml" in refusal()


def test_hosts_that_were_picked_are_not_all_of_the_inventory(lab: str) -> None:
    """The plan says by what the number of nodes came about."""
    rows: list[tuple[dict[str, Any], str]] = [
        ({}, "all hosts of the inventory"),
        ({"hosts": "a,b"}, "all hosts that --hosts leave"),
        ({"exclude": "b", "instance_type": "big"}, "all hosts that --exclude and --instance-type leave"),
    ]
    for said, origin in rows:
        assert planned(cluster=lab, **said).plan.origins["nodes"] == origin


def test_all_hosts_are_taken_unless_fewer_are_asked_for(lab: str) -> None:
    """In the inventory's order; --hosts gives another."""
    plan = planned(cluster=lab).plan
    assert [node.host.name for node in plan.nodes] == ["a", "b", "c"] and plan.origins["nodes"] == "all hosts of the inventory"
    assert [node.host.name for node in planned(cluster=lab, nodes=2).plan.nodes] == ["a", "b"]
    assert [node.host.name for node in planned(cluster=lab, hosts="c,a").plan.nodes] == ["c", "a"]
    assert [node.host.name for node in planned(cluster=lab, exclude="a").plan.nodes] == ["b", "c"]


def test_hosts_alone_are_an_inventory() -> None:
    """--hosts without a file means ssh to them."""
    plan = planned(hosts="n[1-2],u@m:2200").plan
    assert plan.backend == "ssh" and [node.host.address for node in plan.nodes] == ["n1", "n2", "m"]


@pytest.mark.parametrize(
    ("label", "names"),
    [("big", ["a", "b"]), ("small", ["c"])],
)
def test_an_instance_type_picks_its_hosts(lab: str, label: str, names: list[str]) -> None:
    """Only hosts with that label."""
    assert [node.host.name for node in planned(cluster=lab, instance_type=label).plan.nodes] == names


def test_an_unknown_instance_type_lists_what_there_is(lab: str) -> None:
    """Labels there, but not this one: an error."""
    text = refusal(cluster=lab, instance_type="huge")
    assert "'huge'" in text and "big" in text and "small" in text


@pytest.mark.parametrize("said", [{"hosts": "x,y"}, {"nodes": 2}])
def test_where_nobody_is_labelled_an_instance_type_is_ignored_and_said(said: dict[str, Any]) -> None:
    """A notebook written for the cloud runs, and hears once that the label means nothing here, simulated nodes included."""
    found = planned(instance_type="ecs.gn6i-c24g1.12xlarge", **said)
    assert len(found.plan.nodes) == 2
    assert [text for text in found.warnings if "instance_type" in text and "ecs.gn6i-c24g1.12xlarge" in text]


def test_nodes_shows_the_inventory_without_any_job(lab: str) -> None:
    """As `launcher nodes` prints it."""
    assert [host.name for host in inventory(Request(cluster=lab, exclude="b")).hosts] == ["a", "c"]


# --- Values and where they came from ---

VALUES: list[tuple[str, Any, str, Any]] = [
    ("name", "flagged", "filed", "prog"),
    ("grace", 3.0, "7", 30.0),
    ("max_run_time", 5.0, "60", None),
    ("nproc_per_node", 3, "2", None),
    ("keep", True, "true", False),
    ("max_code_size", 10, "1024", 1 << 30),
    ("forward_env", ("A_*",), "[B_*]", ()),
]


@pytest.mark.parametrize(("key", "flag", "filed", "built_in"), VALUES, ids=[row[0] for row in VALUES])
def test_a_flag_wins_over_the_job_file_over_what_is_built_in(here: Path, key: str, flag: Any, filed: str, built_in: Any) -> None:
    """And each value knows where it came from, down to the line."""
    (here / "job.yaml").write_text(f"# a job\nsource_dir: src\n{key}: {filed}\n")
    field = {"max_code_size": "max_code_bytes"}.get(key, key)

    def value(plan: Plan) -> tuple[Any, str]:
        return getattr(plan.spec, field), plan.origins[field]

    assert value(planned(job_file="job.yaml", **{key: flag}).plan) == (flag, "--" + key.replace("_", "-"))
    found, origin = value(planned(job_file="job.yaml").plan)
    assert origin == "job.yaml:3" and found != built_in and (found != flag or flag is True)
    assert value(planned().plan) == (built_in, "built-in")


def test_a_job_file_may_hold_everything(here: Path, lab: str) -> None:
    """Then nothing else need be said; paths are relative to the file."""
    (here / "jobs").mkdir()
    what = "script: train.py\nargs: [--lr, 0.1]\nenv: {A: b}\ncollect: [checkpoints]\n"
    (here / "jobs" / "job.yaml").write_text(f"cluster: ../lab.yaml\nnodes: 2\nsource_dir: ../src\n{what}")
    plan = planned(words=None, job_file="jobs/job.yaml").plan
    assert (plan.cluster, len(plan.nodes)) == ("lab", 2) and Path(plan.spec.source_dir or "").resolve() == here / "src"
    assert plan.spec.command == Command(script=("train.py", "--lr", "0.1")) and plan.spec.env == {"A": "b"}
    assert plan.spec.collect == ("model", "tensorboard", "checkpoints")


def test_words_win_over_the_job_files_command(here: Path) -> None:
    """A flag is a flag."""
    (here / "job.yaml").write_text("command: echo filed\n")
    assert planned(job_file="job.yaml", words=("hostname",)).plan.spec.command == Command(argv=("hostname",))


def test_collect_adds_to_what_always_comes() -> None:
    """Each channel once."""
    assert planned(collect=("checkpoints", "model")).plan.spec.collect == ("model", "tensorboard", "checkpoints")


# --- The environment ---


def test_flags_win_over_files_over_the_job_file_over_this_shell(here: Path) -> None:
    """Each value knows where it came from, and secrets are masked in the plan only."""
    (here / "job.yaml").write_text("env: {A: job, B: job, C: job}\n")
    (here / "x.env").write_text("A=file\nB=file\n")
    (here / "y.env").write_text("B=later\n")
    shell = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hush", "C": "shell"}
    made = planned(shell, job_file="job.yaml", env_file=("x.env", "y.env"), env={"A": "flag"}, forward_env=("C",))
    assert made.environment["all"] == {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hush", "C": "job", "A": "flag", "B": "later"}
    origins = {name: made.plan.origins[f"env.{name}"] for name in made.environment["all"]}
    assert origins == {"NCCL_DEBUG": "this shell", "HF_TOKEN": "this shell", "C": "job file", "A": "--env", "B": "y.env"}
    assert made.plan.spec.env["HF_TOKEN"] == "****"


def test_a_secret_appears_nowhere_in_the_plan(lab: str) -> None:
    """Neither the person's nor the inventory's; the nodes get the real values by another way."""
    made = planned({"WANDB_API_KEY": "s3cr3t"}, cluster=lab, env={"MY_PASSWORD": "s3cr3t"})
    text = json.dumps(to_json(made.plan))
    assert "s3cr3t" not in text and "t0p" not in text
    assert made.environment["nodes"]["2"] == {"NCCL_IB_HCA": "mlx5", "SITE_TOKEN": "t0p"}


ENV_FILE = """# a comment
A=1
export B=two
C="three words"   # another
D='it''s'
E=a=b

F=
"""


def test_an_env_file_is_read_as_a_shell_would(here: Path) -> None:
    """Comments, export, quotes, empty values, a BOM."""
    (here / "x.env").write_bytes(b"\xef\xbb\xbf" + ENV_FILE.encode())
    assert read_env_file(here / "x.env") == {"A": "1", "B": "two", "C": "three words", "D": "its", "E": "a=b", "F": ""}


def test_every_bad_line_of_an_env_file_is_named(here: Path) -> None:
    """With its number and its text."""
    (here / "x.env").write_text("GOOD=1\nno equals\nA = b\n1X=2\nQ='open\n")
    with pytest.raises(UsageError) as caught:
        read_env_file(here / "x.env")
    assert [problem.split(":")[1] for problem in caught.value.problems] == ["2", "3", "4", "5"]


def test_an_env_file_that_is_no_text_is_a_sentence(here: Path) -> None:
    """Not a traceback."""
    (here / "x.env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_env_file(here / "x.env")


# --- The plan as a document ---


@pytest.mark.parametrize("words", [("prog", 'a "b" \n é 日本 \'', "", "\udcff"), ("-m", "x", "--")])
def test_a_plan_survives_a_trip_through_json(words: tuple[str, ...], lab: str) -> None:
    """argv byte by byte."""
    plan = planned(cluster=lab, words=words).plan
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan


def test_the_same_folder_has_the_same_mirror() -> None:
    """So that a second submit sends only what changed; another folder has another."""
    first, again = (planned(source_dir="src").plan.project for _ in range(2))
    Path("src2").mkdir()
    assert first == again != planned(source_dir="src2").plan.project


def test_planning_asks_nobody(monkeypatch: pytest.MonkeyPatch, lab: str) -> None:
    """No process is started and no connection made on the way to a plan."""

    def refuse(name: str) -> Callable[..., None]:
        def fail(*args: object, **kwargs: object) -> None:
            raise AssertionError(f"planning called {name}")

        return fail

    monkeypatch.setattr("subprocess.Popen.__init__", refuse("Popen"))
    monkeypatch.setattr("socket.socket.connect", refuse("connect"))
    monkeypatch.setattr("socket.getaddrinfo", refuse("getaddrinfo"))
    planned(cluster=lab, words=("hostname",))


# --- Slurm's queue ---


def test_a_job_for_slurms_queue_has_a_number_of_nodes_and_none_of_them(here: Path) -> None:
    """What each node will be like is known: the defaults of the cluster file, and a directory that all share."""
    (here / "s.yaml").write_text(
        "backend: slurm\nslurm: {partition: p}\ndefaults: {venv: /opt/t, env: {A: x, MY_TOKEN: t0p}}\n", encoding="utf-8"
    )
    made = planned(cluster="s.yaml", nodes=3)
    plan, template = made.plan, made.plan.template
    assert template is not None and plan.batch
    assert (plan.nodes, plan.spec.nodes, plan.slurm.partition, plan.backend) == ((), 3, "p", "slurm")
    assert (template.venv, template.workdir, template.env) == ("/opt/t", str(here / "home"), {"A": "x", "MY_TOKEN": "****"})
    assert made.environment["each"] == {"A": "x", "MY_TOKEN": "t0p"}
    assert planned(backend="slurm").plan.spec.nodes == 1
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan


@pytest.mark.parametrize(
    ("section", "workdir"),
    [
        ("slurm: {workdir: /w}", "/w"),
        ("defaults: {workdir: ~/d}", "~/d"),
        ("defaults: {workdir: ~/d}\nslurm: {workdir: /w}", "/w"),
    ],
)
def test_a_directory_of_the_nodes_own(here: Path, section: str, workdir: str) -> None:
    """Slurm's section wins over the defaults."""
    (here / "s.yaml").write_text(f"backend: slurm\n{section}\n", encoding="utf-8")
    template = planned(cluster="s.yaml").plan.template
    assert template is not None and template.workdir == workdir


@pytest.mark.parametrize(("option", "key"), [("hosts", "nodelist"), ("exclude", "exclude")])
def test_slurm_chooses_the_nodes(option: str, key: str) -> None:
    """Options that pick hosts of an inventory name what says the same to sbatch."""
    text = refusal(backend="slurm", **{option: "a"})
    assert "Slurm chooses the nodes" in text and f"`{key}` under `slurm:`" in text


def test_in_slurms_queue_an_instance_type_is_ignored_and_said() -> None:
    """Code that names a cloud's machines runs there unchanged."""
    (warning,) = planned(backend="slurm", instance_type="ecs.gn6i-c24g1.12xlarge").warnings
    assert "ecs.gn6i-c24g1.12xlarge" in warning and "`constraint`" in warning


@pytest.mark.parametrize("name", ["cluster", "hostfile", "source_dir", "instance_type", "image", "output_path"])
def test_an_empty_option_is_not_the_same_as_none(lab: str, name: str) -> None:
    """`--cluster "$UNSET"` is no local run, and `--source-dir "$UNSET"` does not send the working directory."""
    said = {"cluster": lab, name: ""} if name != "hostfile" else {name: ""}
    assert f"--{name.replace('_', '-')} is empty" in refusal(**said)


def test_the_backend_has_the_inventory_for_its_origin(lab: str) -> None:
    """Unless it was said otherwise."""
    assert planned(cluster=lab).plan.origins["backend"] == lab
    assert planned(cluster=lab, backend="local").plan.origins["backend"] == "--backend"
    assert planned().plan.origins["backend"] == "built-in"


def test_a_cluster_file_that_leads_nowhere_is_no_local_run(here: Path) -> None:
    """A link to a share that is not mounted, or a directory of that name, is not the same as no ./cluster.yaml."""
    (here / "cluster.yaml").symlink_to("/no/such/share/cluster.yaml")
    assert "cluster.yaml: No such file or directory" in refusal()
    (here / "cluster.yaml").unlink()
    (here / "cluster.yaml").mkdir()
    assert "cluster.yaml: Is a directory" in refusal()


@pytest.mark.parametrize("words", [("",), ("-m",), ("-m", "")])
def test_a_command_without_a_program_is_refused(words: tuple[str, ...]) -> None:
    """`-- "$SCRIPT"` with a variable that is not set is told here, not by every node."""
    assert "names no program" in refusal(words=words)


def test_an_empty_pattern_forwards_nothing_and_is_refused() -> None:
    """Nothing is accepted and ignored."""
    assert "--forward-env is empty" in refusal(forward_env=("",))
