"""Jobs whose outputs are published, to a real S3 server and to a folder: whole, once, and without a secret left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.s3 import S3, SECRET
from tests.data.servers import running, with_a_bucket
from tests.jobs.desk import Desk, eventually

WAITS = "while [ ! -e GO ]; do sleep 0.05; done"
WRITES = "echo m > $PAI_OUTPUT_MODEL/m; echo t > $PAI_OUTPUT_TENSORBOARD/t; echo s > $PAI_OUTPUT_SAMPLES/s"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    yield from running(S3())


@pytest.fixture
def s3(server: S3) -> S3:
    return with_a_bucket(server)


@pytest.fixture
def falling(s3: S3) -> Iterator[S3]:
    """Another server with that bucket; whoever uses it stops it."""
    made = S3()
    made.bucket = s3.bucket
    made.client().create_bucket(Bucket=s3.bucket)
    yield made
    made.stop()


def test_outputs_go_to_a_bucket_and_no_secret_stays(local: Desk, s3: S3) -> None:
    """The URI is the last line, model_data, and what --verify reads; every file of the folder is looked through."""
    uri = f"s3://{s3.bucket}/runs"
    options = ("--output-path", uri, "--output-channel", "samples", "--output-channel", f"tensorboard=s3://{s3.bucket}/tb")
    done = local.submit(*options, "--command", WRITES, env=s3.environment)
    job = local.folder().name
    assert done.stdout.splitlines()[-1] == f"{uri}/{job}/model/"
    assert set(s3.objects()) == {
        f"runs/{job}/model/m", f"runs/{job}/samples/s", f"runs/{job}/model.json", "tb/t", "tb/launcher-manifest.json",
    }  # fmt: skip
    told = local.json("status", "latest")
    assert told["model_data"] == f"{uri}/{job}/model/" and told["outputs"]["tensorboard"] == f"s3://{s3.bucket}/tb/"
    assert json.loads(s3.get(f"runs/{job}/model.json"))["made_by"]["job_id"] == job
    assert local.run("model-data", "latest", "--verify", env=s3.environment).stdout == f"{uri}/{job}/model/\n"
    s3.put(f"runs/{job}/model/m", b"n\n")
    broken = local.run("model-data", "latest", "--verify", env=s3.environment, check=69)
    assert f"error: {uri}/{job}/model/m is not what was collected: its hash differs" in broken.stderr
    local.at_rest()
    for path in local.home.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_what_could_not_be_published_is_sent_by_resume_without_training_again(local: Desk, s3: S3, falling: S3) -> None:
    """The server is gone when the training ends; the outputs are whole here, and the second time another answers."""
    waits = WAITS.replace("GO", str(local.home.parent / "go"))
    counted = f"echo x >> {local.home.parent}/trained; {waits}; {WRITES.partition(';')[0]}"
    job = local.detach("--output-path", f"s3://{s3.bucket}/r", "--command", counted, env=falling.environment)
    falling.stop()
    (local.home.parent / "go").touch()
    done = local.run("attach", job, check=69)
    assert "the outputs could not be published" in done.stderr and "launcher resume" in done.stderr
    told = local.json("status", "latest")
    assert (told["status"], told["reason_code"]) == ("Failed", "PublishFailed")
    assert told["model_data"] == str(local.folder() / "output" / "model")
    assert local.run("resume", "latest", env=s3.environment).stdout.splitlines()[-1] == f"s3://{s3.bucket}/r/{job}/model/"
    assert f"r/{job}/model.json" in s3.objects()
    assert (local.home.parent / "trained").read_text() == "x\n"


def test_a_cancel_while_outputs_are_published_ends_that_and_resume_goes_on(
    local: Desk, tmp_path: Path, s3: S3, falling: S3
) -> None:
    """Nobody answers; the job is Terminated, its outputs are here."""
    patient = {**falling.environment, "AWS_MAX_ATTEMPTS": "20"}
    command = f"{WAITS.replace('GO', str(tmp_path / 'go'))}; echo m > $PAI_OUTPUT_MODEL/m"
    job = local.detach("--output-path", f"s3://{s3.bucket}/r", "--command", command, env=patient)
    falling.stop()
    (tmp_path / "go").touch()
    local.happened("collected", job)
    local.run("cancel", job)
    assert local.json("status", job)["status"] == "Terminated"
    local.run("resume", job, env=s3.environment)
    assert eventually(lambda: f"r/{job}/model.json" in s3.objects(), "published")


def test_a_model_is_copied_once_and_over_nothing_else(local: Desk, tmp_path: Path) -> None:
    """A folder, its manifest last; the same again sends nothing; other content is refused and stays."""
    local.submit("--command", "echo m > $PAI_OUTPUT_MODEL/m; echo l > $PAI_OUTPUT_MODEL/l")
    where = tmp_path / "copy"
    first = local.run("model-data", "latest", "--to", str(where))
    assert first.stdout == f"{where}\n" and sorted(path.name for path in where.iterdir()) == ["l", "launcher-manifest.json", "m"]
    (where / "launcher-manifest.json").unlink()
    (where / "l").unlink()
    assert "copying 1 file(s)" in local.run("model-data", "latest", "--to", where.as_uri()).stderr
    (where / "m").write_text("other\n")
    (where / "launcher-manifest.json").unlink()
    (local.folder() / "output" / ".published").rename(tmp_path / "gone")
    refused = local.run("model-data", "latest", "--to", str(where), check=69)
    assert "something else is there already: m" in refused.stderr and (where / "m").read_text() == "other\n"
    (local.folder() / "output" / "model" / "m").write_text("spoiled\n")
    spoiled = local.json("model-data", "latest", "--to", str(tmp_path / "new"), check=69)
    assert not spoiled["complete"] and spoiled["copied_to"] is None and not (tmp_path / "new").exists()


def test_nothing_is_put_among_the_folders_of_jobs(local: Desk, tmp_path: Path) -> None:
    """A job's own outputs, and what is above them, by whichever name: refused, and all of it stays as it is."""
    local.submit("--command", "echo m > $PAI_OUTPUT_MODEL/m")
    output = local.at_rest() / "output"
    (tmp_path / "link").symlink_to(output)
    before = {path: path.stat().st_mtime_ns for path in local.folder().rglob("*")}
    places = [output / "model", output / "model" / "deeper", output, tmp_path / "link" / "model", local.folder(), local.home]
    for place in (*map(str, places), f"{local.home}/jobs", f"{local.home}/jobs/../jobs/x", (output / "new").as_uri()):
        done = local.run("model-data", "latest", "--to", place, check=2)
        assert "jobs have their folders there" in done.stderr and "name another place" in done.stderr, place
    assert {path: path.stat().st_mtime_ns for path in local.folder().rglob("*")} == before
    places_of_a_job = ("--output-path", str(local.home / "jobs"), "--checkpoints-path", str(output))
    refused = local.submit(*places_of_a_job, "--output-channel", f"model={output}", "--command", "true", check=2)
    assert refused.stderr.count("jobs have their folders there") == 3
    assert "there is no user no-such here" in local.run("model-data", "latest", "--to", "~no-such/a", check=2).stderr
    assert "not an empty text" in local.run("model-data", "latest", "--to", "", check=2).stderr
    assert "write file:///absolute/path" in local.run("model-data", "latest", "--to", "file:///a%00b", check=2).stderr
    assert local.run("model-data", "latest", "--to", str(tmp_path)).stdout == f"{tmp_path}\n"


def test_a_place_that_cannot_be_written_to_is_said_before_the_command_runs(local: Desk, s3: S3, tmp_path: Path) -> None:
    """A bucket that is not there: nothing was trained for nothing."""
    command = f"touch {tmp_path}/trained"
    done = local.submit("--output-path", "s3://no-such-bucket/r", "--command", command, env=s3.environment, check=69)
    assert "InitializeFailed" in done.stderr and "s3://no-such-bucket/r" in done.stderr and "check the URI" in done.stderr
    assert local.json("status", "latest")["reason_code"] == "OutputPathFailed" and not (tmp_path / "trained").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--output-path", "s3://bucket/x?token=abc"),
            "output_path: s3://bucket/x?****: a secret (token=…) must not stand in a URI",
        ),
        (("--output-path", "ftp://me:pw@host/x"), "output_path: ftp://****@host/x: a password must not stand in a URI"),
        (("--output-path", "nosuch://x/y"), "no such protocol: nosuch"),
        (("--output-path", "https://host/x"), "nothing can be written to https://"),
        (("--checkpoints-path", "memory://x/y"), "what is in memory:// is seen by one process alone"),
        (("--output-channel", "a.b", "--output-channel", "a-b"), "'a.b' and 'a-b' would both be PAI_OUTPUT_A_B"),
        (("--output-channel", "../x"), "a channel's name: letters, digits"),
        (("--output-channel", "model.json"), "'model.json': the manifest has this name; rename the channel"),
        (("--output-path", "file:///tmp/a%00b"), "write file:///absolute/path"),
        (("--input", f"x=/{'x' * 300}/y"), "(/ is the last folder of it that exists)"),
        (("--output-channel", "MODEL"), "'model' and 'MODEL' would both be PAI_OUTPUT_MODEL"),
        (
            ("--output-channel", "a=/tmp/x", "--output-channel", "b=/tmp/./x/"),
            "outputs.a and outputs.b: /tmp/x is one place; each needs its own",
        ),
        (
            ("--output-channel", "a=/tmp/x", "--checkpoints-path", "file:///tmp/x"),
            "outputs.a and checkpoints_path: /tmp/x is one place",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(local: Desk, options: tuple[str, ...], sentence: str) -> None:
    """Without the secret itself."""
    done = local.submit(*options, "--command", "true", check=2)
    assert sentence in done.stderr and "abc" not in done.stderr and "pw" not in done.stderr
    assert not (local.home / "jobs").exists()
