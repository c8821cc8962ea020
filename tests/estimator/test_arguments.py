"""Wrong arguments of an Estimator: all of them at once, in one typed error."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import Estimator, TrainingJob, api
from launcher.errors import UsageError, WrongArguments
from launcher.estimator import ARGUMENTS, request_of
from launcher.model import Command
from launcher.session import Session


class Image:
    """As `retrieve` gives one."""

    image_uri = "venv:/opt/t"


class BytesPath:
    """A path that is no text."""

    def __fspath__(self) -> bytes:
        return b"/tmp"


NUMBERS = np.array([1, 2])
"""what Python can compare with nothing"""


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("image_uri", 3, "a text is wanted, not an int"),
        ("image_uri", Image(), "`.image_uri` of it is wanted"),
        ("command", "  ", "is empty"),
        ("command", [], "is empty"),
        ("command", ["python", 3], "3 is an int"),
        ("source_dir", ["a"], "a text is wanted"),
        ("git_config", {"branch": "main"}, "repo is missing"),
        ("git_config", {"repo": "x", "brnach": "main"}, "did you mean branch?"),
        ("git_config", {"repo": "x", "password": "hunter2"}, "password: your own git is asked: by ssh, "),
        ("job_type", "TFJob", "only PyTorchJob is run here"),
        ("hyperparameters", ["lr"], "a dict is wanted, not a list"),
        ("hyperparameters", {3: "x"}, "3 is no name"),
        ("hyperparameters", {"lr": {1, 2}}, "'lr': a value is a text, a number"),
        ("hyperparameters", {"a-b": 1, "a_b": 2}, "would both be PAI_HPS_A_B"),
        ("environments", {"A": None}, "A is a NoneType"),
        ("environments", {"RANK": "1", "A=B": "x"}, "'A=B' is no name of a variable; RANK is the launcher's own"),
        ("environments", {"A": "x\0"}, "A has a NUL in it"),
        ("requirements", "numpy", "not a text"),
        ("base_job_name", "a/b", "a/b"),
        ("max_run_time", 0, "more than 0"),
        ("max_run_time", "soon", "soon"),
        ("metric_definitions", {"Name": "a", "Regex": "(b)"}, "a list such as"),
        ("metric_definitions", [{"Name": "a", "Regex": "b"}], "a: 'b' has no groups; exactly one is wanted"),
        ("metric_definitions", [{"Name": "a", "Regex": "(b)"}] * 2, "a: defined twice"),
        ("metric_definitions", [{"Name": "a", "Regex": "("}], "is no regular expression"),
        ("metric_definitions", [{"Name": "a"}, {"Name": "b", "Regex": "("}], "wanted; b: '(' is no regular expression"),
        ("instance_count", 0, "at least 1"),
        ("instance_count", True, "at least 1"),
        ("instance_count", 1.5, "a whole number"),
        ("nproc_per_node", "all", '"auto"'),
        ("backend", "cloud", "local, ssh, slurm"),
        ("max_restarts", 3, "not in this version"),
        ("spares", 1, "not in this version"),
        ("session", "lab", "a launcher.session.Session is wanted"),
        ("settings", {"colect": ["x"]}, "did you mean collect?"),
        ("settings", {"xyz": 1}, "xyz: unknown (there are hosts, exclude, hostfile, "),
        ("settings", {"grace": "x"}, "settings: grace"),
        ("settings", {"keep": "yes"}, "keep: 'yes': True or False"),
        ("settings", {"max_code_size": "lots"}, "max_code_size: 'lots': "),
        ("settings", {"collect": "checkpoints"}, "a list of names of channels is wanted, not a text"),
        ("labels", {"team": 1.5}, "team is a float"),
        ("job_type", NUMBERS, "only PyTorchJob is run here"),
        ("backend", NUMBERS, "local, ssh, slurm"),
        ("nproc_per_node", NUMBERS, '"auto"'),
        ("spares", NUMBERS, "not in this version"),
        ("max_run_time", float("inf"), "at most 100 years"),
        ("max_run_time", 10**400, "at most 100 years"),
        ("settings", {"max_code_size": 2**70}, "at most 1 EiB"),
        ("settings", {"env_file": b""}, "a list of files is wanted, not a bytes"),
        ("command", "echo \0", "has a NUL in it"),
        ("command", ["echo", "\ud800"], "has half a character in it"),
        ("source_dir", "\ud800", "has half a character in it"),
        ("output_path", BytesPath(), "a path of text is wanted"),
        ("environments", {"A": "\ud800"}, "A has half a character in it"),
        ("hyperparameters", {"a": ["\ud800"]}, "'a': a value is a text, a number"),
        ("labels", {"a\0": "b"}, "is no name"),
        ("instance_cuont", 2, "unknown argument (did you mean instance_count?)"),
    ],
)
def test_an_argument_that_cannot_be_is_a_sentence(name: str, value: Any, sentence: str) -> None:
    """It names the argument and what is wanted; the error is a ValueError, and the launcher's own."""
    with pytest.raises(WrongArguments) as told:
        Estimator(**{"command": "true", name: value})
    (problem,) = told.value.problems
    assert problem.startswith(name) and sentence in problem
    assert isinstance(told.value, ValueError) and isinstance(told.value, UsageError)


def test_all_problems_are_told_at_once() -> None:
    """Whoever mends one need not run into the next."""
    with pytest.raises(WrongArguments) as told:
        Estimator(command=3, instance_count=0, instance_tpye="a", settings={"hots": "a"})  # type: ignore[arg-type]
    assert len(told.value.problems) == 4
    assert str(told.value).endswith("next: mend all of these; help(launcher.Estimator) explains them")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"source_dir": "x" * 5000}, "there is no such source folder"),
        ({"source_dir": "~nosuchuser/x"}, "there is no such source folder"),
        ({"source_dir": "oss://bucket/code/"}, "oss://bucket/code/: a source folder is one of this machine"),
        ({"source_dir": "file:///no/such"}, "/no/such: there is no such source folder"),
        ({"cluster": "x" * 5000}, "x" * 5000),
        ({"settings": {"env_file": ["a\0"]}}, "has a NUL in it"),
        ({"inputs": {"x": BytesPath()}}, "inputs.x: a path, a URI, or"),
        ({"inputs": {"x": "/tmp/\ud800"}}, "inputs.x: '/tmp/\\ud800' has half a character in it"),
        ({"outputs": {"x": "/tmp/\0"}}, "outputs.x: a folder or a URI is wanted, and '/tmp/\\x00' has a NUL in it"),
    ],
)
def test_names_that_no_file_can_have_are_sentences(asked: dict[str, Any], sentence: str) -> None:
    """Too long, of nobody's home, with what no name has; whoever plans the job says so."""
    mine = {key: asked[key] for key in asked if key in ("inputs", "outputs")}
    with pytest.raises(UsageError) as told:
        rest = {key: value for key, value in asked.items() if key not in mine}
        api.plan(request_of(Estimator(**{"command": "true", **rest}), **mine))
    assert sentence in str(told.value)


def test_secrets_are_not_repeated() -> None:
    """The value of a variable does not stand in an error."""
    with pytest.raises(WrongArguments) as told:
        Estimator(command="true", environments={"TOKEN": ["hunter2"]})
    assert "hunter2" not in str(told.value)


def test_what_only_a_cloud_knows_is_warned_of_once() -> None:
    """One warning names all of it; PAI's own settings, which begin with capitals, are among it."""
    with pytest.warns(UserWarning) as told:
        Estimator(command="true", user_vpc_config={}, spot_spec=object(), settings={"Tags": {}, "keep": True})
    (warning,) = told
    assert all(name in str(warning.message) for name in ("user_vpc_config", "spot_spec", "settings['Tags']"))
    assert warning.filename == __file__


def test_a_fit_looks_at_changed_attributes_and_at_its_own_arguments() -> None:
    """Settings are attributes; what is wrong with them is told before anything starts."""
    said = Estimator(command="true")
    said.instance_count = 0
    with pytest.raises(WrongArguments) as told:
        request_of(said, inputs=["a"], outputs="model", job_name="a b/c", attached="no")  # type: ignore[arg-type]
    names = [problem.partition(":")[0] for problem in told.value.problems]
    assert names == ["instance_count", "inputs", "job_name", "outputs", "wait"]


def test_a_command_is_needed() -> None:
    """PAI takes an estimator without one, and so do we; a fit needs it."""
    with pytest.raises(WrongArguments, match="command: there is none"):
        request_of(Estimator())


def test_a_text_is_for_the_shell_and_a_list_is_words() -> None:
    """Neither is changed on its way."""
    assert request_of(Estimator(command="echo $RANK")).command == Command(shell="echo $RANK")
    assert request_of(Estimator(command=["echo", "$RANK"])).command == Command(argv=("echo", "$RANK"))


def test_positional_arguments_stand_in_pais_order() -> None:
    """image_uri, command, source_dir, git_config, job_type, hyperparameters."""
    said = Estimator("venv:/opt/t", "true", "src", None, "PyTorchJob", {"lr": 1})
    assert (said.image_uri, said.command, said.source_dir, said.hyperparameters) == ("venv:/opt/t", "true", "src", {"lr": 1})


def test_members_of_an_enum_are_their_values() -> None:
    """Where texts, or whole numbers, are wanted, whatever str() makes of them."""

    class Word(str, enum.Enum):
        ONE = "one"

    class Number(enum.IntEnum):
        TWO = 2

    given: dict[str, Any] = {"A": Word.ONE, "B": Number.TWO, "C": 3}
    request = request_of(Estimator(command="true", environments=given, labels=given))
    assert request.env == request.labels == {"A": "one", "B": "2", "C": "3"}


def test_an_attribute_that_is_none_says_as_little_as_an_argument() -> None:
    """Between two fits all of them may be set to that."""
    plain, said = request_of(Estimator(command="true")), Estimator(command="true", hyperparameters={"lr": 1}, labels={"a": "b"})
    for name in ARGUMENTS:
        if name not in ("command", "instance_count"):
            setattr(said, name, None)
    assert request_of(said) == plain
    said.set_hyperparameters(lr=2)
    assert request_of(said).hyperparameters == {"lr": 2}


def test_what_is_asked_for_becomes_the_front_desks_request(tmp_path: Path) -> None:
    """Every argument arrives under the name that the command line uses."""
    said = Estimator(
        command="true", source_dir=tmp_path, environments={"A": 1}, base_job_name="ddp", max_run_time="2h", instance_type="a100",
        instance_count=3, nproc_per_node="auto", labels={"team": "x"}, hyperparameters={"lr": 0.1},
        settings={"collect": ["checkpoints"], "grace": "5s", "hosts": "n[1-3]", "max_code_size": "1MB"},
        session=Session("lab.yaml"),
    )  # fmt: skip
    said.set_hyperparameters(lr=0.2, epochs=3)
    request = request_of(said, attached=False)
    assert (request.source_dir, request.env, request.name, request.max_run_time) == (str(tmp_path), {"A": "1"}, "ddp", 7200)
    assert (request.nodes, request.instance_type, request.nproc_per_node, request.detached) == (3, "a100", "auto", True)
    assert (request.cluster, request.hosts, request.grace, request.collect) == ("lab.yaml", "n[1-3]", 5.0, ("checkpoints",))
    assert request.max_code_size == 1_000_000
    assert request.hyperparameters == {"lr": 0.2, "epochs": 3} and request.labels == {"team": "x"}


def test_what_is_no_job_and_no_way_to_wait() -> None:
    """Each is a sentence with what is allowed, and none is taken for something else."""
    for odd in (None, 5, Estimator()):
        with pytest.raises(WrongArguments, match="training_job_id: a job's id, the beginning of one, or `latest` is wanted"):
            Estimator.attach(odd)  # type: ignore[arg-type]
    with pytest.raises(WrongArguments, match=r"status: 'Succeeded': one of Creating, "):
        TrainingJob.list(status="Succeeded")
    with pytest.raises(WrongArguments) as told:
        Estimator().wait(interval="5", show_logs="no", all_jobs=1)  # type: ignore[arg-type]
    assert [problem.partition(":")[0] for problem in told.value.problems] == ["interval", "show_logs", "all_jobs"]


@pytest.mark.parametrize("word", ["local", "local_gpu"])
def test_pais_word_for_this_machine(word: str) -> None:
    """It is no label of hosts: the nodes are simulated here, whatever the session says."""
    request = request_of(Estimator(command="true", instance_type=word, session=Session("lab.yaml", "ssh")))
    assert (request.backend, request.cluster, request.instance_type) == ("local", None, None)


def test_names() -> None:
    """The class's name, unless one is given; the day and the time follow."""

    class MyTraining(Estimator):
        """A subclass."""

    assert request_of(MyTraining(command="true")).name == "mytraining"
    assert MyTraining(command="true").job_name().startswith("mytraining-20")
    assert Estimator(command="true", base_job_name="a").job_name("b").startswith("b-20")
