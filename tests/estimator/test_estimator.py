"""Estimator and TrainingJob on simulated nodes: real jobs, started from this very process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import Estimator, LauncherError, TrainingJob, UnexpectedStatusException, arguments
from launcher.errors import CollectFailed, JobNotFound, UsageError, WrongArguments
from launcher.estimator import request_of
from tests.jobs.desk import Desk, eventually

MODEL = "echo trained > $PAI_OUTPUT_MODEL/model.pt"
RAISES = "printf 'def work():\\n    raise ZeroDivisionError(7)\\nwork()\\n' > a.py; python3 a.py"


def test_a_fit_shows_the_logs_and_leaves_a_model(office: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """First where the job can be watched, then what every node prints; afterwards model_data() is a path with the model in it."""
    said = Estimator(command=f"echo hello from $RANK of $WORLD_SIZE; {MODEL}", instance_count=2, base_job_name="ddp")
    job = said.fit()
    out, err = capfd.readouterr()
    assert {"[0] hello from 0 of 2", "[1] hello from 1 of 2"} <= set(out.splitlines())
    assert f"launcher attach {job.training_job_id}" in err.partition("reached")[0]
    assert (Path(said.model_data()) / "model.pt").read_text() == "trained\n"
    assert said.latest_job is job and job.training_job_id.startswith("ddp-20")
    assert (job.status, job.is_succeeded(), job.is_completed(), job.reason_code) == ("Succeed", True, True, None)
    assert job.output_path("model") == said.model_data() and job.console_uri == office.folder().as_uri()
    assert said.describe() == office.json("status", job.training_job_id)


def test_a_copy_has_jobs_of_its_own(office: Desk) -> None:
    """Another value is tried on a copy: the hyperparameters and latest job of the first stay; a job found anew is equal."""
    said = Estimator(command=MODEL, hyperparameters={"lr": 1})
    first = said.fit(show_logs=False)
    other = copy.copy(said)
    other.set_hyperparameters(lr=2)
    other.hyperparameters["more"] = 3  # type: ignore[index]
    second = other.fit(show_logs=False)
    assert (said.hyperparameters, said.latest_job, other.latest_job) == ({"lr": 1}, first, second)
    assert TrainingJob.list() == [first, second] and {first, TrainingJob.get(first.training_job_id)} == {first}
    assert first not in (second, first.training_job_id)


def test_without_logs(office: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """show_logs=False leaves out what the command prints; what becomes of the job is still told."""
    Estimator(command=f"echo hello; {MODEL}").fit(show_logs=False, job_name="quiet")
    out, err = capfd.readouterr()
    assert "hello" not in out and "running" in err and "job quiet-20" in err


def test_two_fits_are_two_jobs(office: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """Each has its folder; what is ignored is warned of once; all can be waited for, and are shown as a table."""
    said = Estimator(command=MODEL, instance_type="a100")
    arguments.warn_once.cache_clear()
    with pytest.warns(UserWarning) as told:
        first = said.fit(wait=False)
        second = said.fit(wait=False)
    (ignored,) = [one for one in told if one.category is UserWarning]
    assert str(ignored.message) == "simulated nodes have no instance_type; 'a100' is ignored" and ignored.filename == __file__
    assert first.training_job_id != second.training_job_id and said.latest_job is second
    said.wait(all_jobs=True)
    table = capfd.readouterr().out.splitlines()[-3:]
    assert [line.split()[:2] for line in table[1:]] == [[job.training_job_id, "Succeed"] for job in (first, second)]
    assert {job.training_job_id for job in TrainingJob.list()} == {first.training_job_id, second.training_job_id}
    assert TrainingJob.list("Failed") == []


def test_a_failure_is_an_exception_that_knows_everything(office: Desk) -> None:
    """Node, host, exit code, traceback and log, as attributes and in its text; the job can still be looked at."""
    said = Estimator(command=f"test $RANK = 0 && sleep 300; {RAISES}", instance_count=2)
    with pytest.raises(UnexpectedStatusException) as told:
        said.fit()
    error, failure = told.value, told.value.failure
    assert failure is not None and (failure.node, failure.host, failure.exit_code) == (1, "local-1", 1)
    assert failure.traceback is not None and "ZeroDivisionError: 7" in failure.traceback
    assert failure.log is not None and Path(failure.log).is_file()
    assert (error.status, error.reason_code, error.exit_code) == ("Failed", "CommandFailed", 1)
    assert all(text in str(error) for text in ("node 1 (local-1)", "ZeroDivisionError: 7", failure.log, error.job_id))
    assert said.latest_job is not None and said.latest_job.failure == failure
    assert said.latest_job.reason_message is not None and "exited with 1" in said.latest_job.reason_message
    with pytest.warns(UserWarning, match="has not succeeded: Failed"):
        assert said.model_data() == said.latest_job.output_path()
    with pytest.raises(UnexpectedStatusException):
        said.wait(all_jobs=True)


def test_no_job_yet() -> None:
    """Whatever asks for one says how to get one."""
    said = Estimator(command="true")
    for act in (said.model_data, said.checkpoints_data, said.tensorboard_data, said.wait, said.stop, said.describe):
        with pytest.raises(RuntimeError, match="this estimator has no job yet"):
            act()
    assert said.latest_job is None


def test_an_empty_model_is_a_warning(office: Desk) -> None:
    """The path is returned all the same."""
    said = Estimator(command="true")
    said.fit()
    with pytest.warns(UserWarning, match="is empty"):
        assert Path(said.model_data()).is_dir()


def test_a_channel_that_the_job_has_not_is_an_error_that_lists_those_there_are(office: Desk) -> None:
    """Neither a typing error nor a way out of the folder is a place of outputs."""
    job = Estimator(command="true").fit(outputs=["samples"])
    assert job.output_path("samples").endswith("/output/samples")
    for odd in ("sample", "../model"):
        with pytest.raises(UsageError, match="the job has no output channel") as told:
            job.data(odd)
        assert told.value.problems == ("model", "checkpoints", "tensorboard", "samples")


def test_a_model_that_was_damaged_is_an_error(office: Desk) -> None:
    """After a success the model is compared with its manifest."""
    said = Estimator(command=MODEL)
    said.fit()
    (Path(said.model_data()) / "model.pt").write_text("changed")
    with pytest.raises(CollectFailed, match=r"model\.pt has 7 bytes, 8 were collected"):
        said.model_data()


def test_stop_and_attach(office: Desk) -> None:
    """Another program finds the job by its id, with its settings, and stops it; a stop is no success."""
    said = Estimator(command="sleep 300", environments={"API_TOKEN": "x", "A": "b"}, settings={"grace": 3})
    job = said.fit(wait=False)
    other = Estimator.attach(job.training_job_id[:-2])
    assert (other.command, other.instance_count, other.environments) == ("sleep 300", 1, {"API_TOKEN": "****", "A": "b"})
    assert other.latest_job is not None and other.latest_job.training_job_id == job.training_job_id
    other.stop()
    assert (job.status, job.reason_code) == ("Terminated", "Cancelled")
    with pytest.raises(UnexpectedStatusException, match="Terminated"):
        said.wait()
    with pytest.raises(WrongArguments, match="API_TOKEN"):
        other.fit()
    with pytest.raises(JobNotFound):
        Estimator.attach("nothing")


def test_an_attached_estimator_has_every_setting_of_the_job(office: Desk, tmp_path: Path) -> None:
    """A new fit of it is the same job, on the same machines; of what is secret it says where it stood."""
    Path("cluster.yaml").write_text("backend: local\nhosts: [a, b, c]\n")
    settings = {"hosts": "c,a", "grace": 3, "forward_env": ["MY_*"], "collect": ["checkpoints"], "max_code_size": "1MB"}
    said = Estimator(
        command=MODEL, settings={**settings, "checkpoint_interval": "1h"}, checkpoints_path=str(tmp_path / "kept"),
        instance_count=None,
    )  # fmt: skip
    first = said.fit(outputs=["samples"])
    again = Estimator.attach(first.training_job_id).fit(outputs=["samples"])
    plans = [json.loads((office.folder(job.training_job_id) / "plan.json").read_text()) for job in (first, again)]
    assert [[node["host"]["name"] for node in plan["nodes"]] for plan in plans] == [["c", "a"]] * 2
    differ = [key for key, value in plans[0]["spec"].items() if plans[1]["spec"][key] != value]
    assert not differ, differ
    no_command = ["3", "[]", "{}", '{"spec": {"command": {}}}', '{"spec": {"command": null}}']
    for odd in (*no_command, '{"spec": {"command": {}, "git": {}}}', '{"spec": {"env": 3}}'):
        (office.folder(first.training_job_id) / "job.json").write_text(odd)
        with pytest.raises(UsageError, match="does not say what it was asked for"):
            Estimator.attach(first.training_job_id)


def test_machines_without_a_file_are_named_again(office: Desk) -> None:
    """By all that was said of them."""
    hosts = "me@n1:2200,[fd00::3]:22,n2"
    job = Estimator(command="true", backend="local", instance_count=None, settings={"hosts": hosts}).fit()
    attached = Estimator.attach(job.training_job_id)
    assert attached.settings is not None and attached.settings["hosts"] == hosts
    plans = [json.loads((job.describe()["folder"] / Path("plan.json")).read_text()) for job in (job, attached.fit())]
    assert plans[0]["nodes"] == plans[1]["nodes"]


def test_secrets_that_an_attached_estimator_does_not_know_are_named_at_once() -> None:
    """Wherever they stood."""
    said = Estimator(
        command="true", environments={"A_KEY": "****"}, hyperparameters={"token": "****"},
        requirements=["x", "--index-url https://****@host/simple"], git_config={"repo": "https://****@host/r.git"},
    )  # fmt: skip
    with pytest.raises(WrongArguments) as told:
        said.fit()
    places = ("environments['A_KEY']", "hyperparameters['token']", "requirements[1]", "git_config['repo']")
    assert told.value.problems == places


def test_everything_that_is_wrong_with_a_fit_is_told_at_once(office: Desk) -> None:
    """What only the disk and the cluster file tell, too; each with its own next step."""
    Path("cluster.yaml").write_text("hosts: [a, b]\n")
    said = Estimator(
        command="true", source_dir="nowhere", image_uri="nobodys", instance_count=3, requirements=["x"], output_path="foo://x",
        settings={"collect": ["chekpoints"], "env_file": ["none.env"]},
    )  # fmt: skip
    with pytest.raises(UsageError) as told:
        said.fit(inputs={"train": "./none"})
    text = str(told.value)
    for sentence in (
        "nowhere: there is no such source folder",
        "no image is called 'nobodys'",
        "--nodes 3, but there are 2 hosts",
        "none.env: the env file cannot be read",
        "output_path: foo://x: ",
        "collect: 'chekpoints': no such channel (did you mean checkpoints?)",
        "inputs.train: there is no",
    ):
        assert text.count(sentence) == 1, (sentence, text)
    assert not TrainingJob.list()


def test_a_job_of_the_command_line_can_be_attached_to(office: Desk) -> None:
    """Whatever started it; and be run again."""
    office.run("submit", "--name", "cli", "--", "sh", "-c", MODEL)
    said = Estimator.attach("latest")
    assert said.command == ["sh", "-c", MODEL] and said.base_job_name == "cli"
    assert Path(said.model_data(), "model.pt").is_file()
    assert said.fit().training_job_id.startswith("cli-")


def test_a_second_wait_goes_on_where_the_first_stopped(office: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """No line twice, none lost; descriptors are given back."""
    job = Estimator(command="echo one; while ! test -e go; do sleep 0.05; done; echo two").fit(wait=False)
    code = Path(office.happened("reached")["nodes"][0]["job_dir"]) / "code"
    eventually(lambda: b"one" in office.log(0) if (office.folder() / "logs/node-0/stdout.log").exists() else False, "it runs")
    interrupt_after(job.wait, "[0] one")
    (code / "go").touch()
    job.wait()
    assert capfd.readouterr().out == "[0] two\n"


def test_threads_that_wait_for_one_job(office: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """Each returns at its end, and what it prints is shown once; a job that was waited for can be copied and pickled."""
    go = office.home.parent / "go"
    said = Estimator(command=f"for i in 1 2 3; do echo line $i; until [ -e {go} ]; do sleep 0.05; done; done; {MODEL}")
    job = said.fit(wait=False)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(act) for act in (said.wait, job.wait, said.wait, job.wait)]
        eventually(lambda: job.status == "Running", "it runs")
        go.touch()
        assert [one.result() for one in waiting] == [None] * 4
    assert capfd.readouterr().out == "[0] line 1\n[0] line 2\n[0] line 3\n"
    assert [pickle.loads(pickle.dumps(job)), copy.copy(job), copy.deepcopy(job)] == [job] * 3


def interrupt_after(act: Callable[[], Any], text: str) -> None:
    """Ctrl-C once the text is shown.

    Shown in a file, which is read without touching it: pytest's own capture is emptied by a look, and what is written in that
    moment is lost.
    """

    def press() -> None:
        eventually(lambda: text.encode() in os.pread(screen.fileno(), 1 << 20, 0), text)
        signal.pthread_kill(main.ident or 0, signal.SIGINT)

    main = threading.main_thread()
    finger = threading.Thread(target=press)
    with tempfile.TemporaryFile("w", encoding="utf-8") as screen, contextlib.redirect_stdout(screen):
        finger.start()
        with pytest.raises(KeyboardInterrupt):
            act()
        finger.join()


def test_inside_a_running_event_loop_and_in_a_thread(office: Desk) -> None:
    """As in a notebook: a loop runs already; or several jobs at once, from threads."""

    async def cell() -> list[TrainingJob]:
        one = Estimator(command=MODEL).fit()
        more = await asyncio.gather(*(asyncio.to_thread(Estimator(command=MODEL).fit) for _ in range(2)))
        return [one, *more]

    jobs = asyncio.run(cell())
    assert [job.status for job in jobs] == ["Succeed"] * 3 and len({job.training_job_id for job in jobs}) == 3


SCRIPT = """
from launcher import Estimator
job = Estimator(command="until [ -e go ]; do sleep 0.05; done; echo done > $PAI_OUTPUT_MODEL/m").fit(wait=False)
print(job.training_job_id)
"""


def test_a_script_that_ends_right_after_the_fit(office: Desk) -> None:
    """The job goes on without it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**office.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    job = TrainingJob.get(done.stdout.strip())
    assert not job.is_completed()
    (Path(office.happened("reached")["nodes"][0]["job_dir"]) / "code" / "go").touch()
    job.wait(show_logs=False)
    assert job.is_succeeded()


def test_a_stream_that_takes_only_text(office: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's stdout has no bytes below it; what is no text is shown as such."""

    class Cell(io.StringIO):
        """As ipykernel's."""

    shown = Cell()
    monkeypatch.setattr(sys, "stdout", shown)
    Estimator(command=r"printf 'a\377b\n'").fit()
    assert shown.getvalue() == "[0] a\N{REPLACEMENT CHARACTER}b\n"


def test_a_stream_that_can_write_and_no_more(office: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs put one into the place of sys.stdout; those that have closed theirs see nothing, and run their jobs."""
    shown: list[str] = []

    class Both:
        """To a file, too."""

        def write(self, text: str) -> None:
            shown.append(text)

    monkeypatch.setattr(sys, "stdout", Both())
    Estimator(command="echo seen").fit()
    assert "".join(shown) == "[0] seen\n"
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    said = Estimator(command="echo unseen")
    assert said.fit().is_succeeded()
    said.wait(all_jobs=True)


def test_a_job_whose_folder_was_removed(office: Desk) -> None:
    """Whatever is asked of it, that is what is said."""
    job = Estimator(command="true").fit(show_logs=False)
    shutil.rmtree(office.folder())
    for act in (job.wait, job.stop, job.describe):
        with pytest.raises(LauncherError, match="the job's folder was removed"):
            act()


def test_nothing_is_left_of_a_fit_that_cannot_be(office: Desk) -> None:
    """A source folder that is not there is an error before there is a job."""
    said = Estimator(command="true", source_dir="no/such")
    with pytest.raises(LauncherError, match="no such source folder"):
        said.fit()
    assert said.latest_job is None and not (office.home / "jobs").exists()


def test_the_package_is_cheap_to_import() -> None:
    """Names are loaded when they are asked for."""
    look = "print([name for name in sys.modules if name.startswith('launcher.')])"
    code = f"import sys, launcher; {look}; launcher.Estimator; launcher.run; dir(launcher)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert json.loads(done.stdout) == []
    with pytest.raises(AttributeError, match="no attribute 'Estimater'"):
        _ = __import__("launcher").Estimater


def test_what_an_estimator_is_given_arrives_at_the_command(office: Desk, tmp_path: Path) -> None:
    """Hyperparameters, variables, inputs, own outputs and metrics, by the same way as from the command line."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("seen")
    said = Estimator(
        command="echo $PAI_USER_ARGS $A; cat $PAI_INPUT_TRAIN/a.txt > $PAI_OUTPUT_EXTRA/copy; echo loss=0.5",
        hyperparameters={"epochs": 3}, environments={"A": 7}, labels={"team": "x"}, output_path=str(tmp_path / "kept"),
        metric_definitions=[{"Name": "loss", "Regex": r"loss=(\S+)"}],
    )  # fmt: skip
    job = said.fit(inputs={"train": str(tmp_path / "data")}, outputs=["extra"])
    assert office.log(0).splitlines()[0] == b"--epochs 3 7"
    assert job.output_path("extra") == f"{tmp_path}/kept/{job.training_job_id}/extra/"
    assert (tmp_path / "kept" / job.training_job_id / "extra" / "copy").read_text() == "seen"
    assert job.describe()["labels"] == {"team": "x"}
    assert [(one["name"], one["value"]) for one in job.metrics] == [("loss", 0.5)]
    assert said.training_job is said.latest_job and said.training_job.metrics == job.metrics


def test_checkpoints_that_are_kept_elsewhere(office: Desk, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """checkpoints_data() names that place; a second fit goes on from there."""
    said = Estimator(
        command="cat $PAI_OUTPUT_CHECKPOINTS/n 2>/dev/null || echo none; echo more >> $PAI_OUTPUT_CHECKPOINTS/n",
        checkpoints_path=str(tmp_path / "kept"), instance_type="local",
    )  # fmt: skip
    said.fit(show_logs=False)
    assert said.checkpoints_data() == f"{tmp_path}/kept/" and (tmp_path / "kept" / "n").read_text() == "more\n"
    said.fit(show_logs=False)
    assert office.log(0) == b"more\n" and (tmp_path / "kept" / "n").read_text() == "more\nmore\n"
    assert not [str(one.message) for one in recwarn.list if "checkpoints" in str(one.message)]


def test_checkpoints_of_a_job_are_what_the_next_one_goes_on_from(office: Desk) -> None:
    """PAI's way to resume: checkpoints_path=first.checkpoints_data(), also out of the job folder."""
    command = "cat $PAI_OUTPUT_CHECKPOINTS/n 2>/dev/null || echo none; echo more >> $PAI_OUTPUT_CHECKPOINTS/n"
    first = Estimator(command=f"{command}; exit 4", instance_type="local")
    with pytest.raises(UnexpectedStatusException):
        first.fit(show_logs=False)
    with pytest.warns(UserWarning, match="has not succeeded"):
        kept = first.checkpoints_data()
    assert (Path(kept) / "n").read_text() == "more\n"
    second = Estimator(command=command, instance_type="local", checkpoints_path=kept)
    second.fit(show_logs=False)
    assert office.log(0) == b"more\n" and (Path(second.checkpoints_data()) / "n").read_text() == "more\nmore\n"
    assert (Path(kept) / "n").read_text() == "more\n"
    assert second.describe()["outputs"]["checkpoints"] == second.checkpoints_data()
    again = Estimator.attach(second.latest_job.training_job_id)  # type: ignore[union-attr]
    assert again.checkpoints_path == kept and request_of(again).brings_checkpoints and request_of(again).collect is None
    second.settings = {"collect": []}
    second.checkpoints_path = None
    second.fit(show_logs=False)
    assert not (office.folder() / "output" / "checkpoints" / "n").exists()
