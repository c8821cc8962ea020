"""Jobs that read from and write to OSS, with the real client and a server that proves who asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.oss import SECRET, Oss
from tests.data.servers import running, with_a_bucket
from tests.jobs.desk import Desk


@pytest.fixture(scope="module")
def server() -> Iterator[Oss]:
    yield from running(Oss())


@pytest.fixture
def oss(server: Oss) -> Oss:
    return with_a_bucket(server)


def test_a_job_reads_publishes_and_resumes_and_no_secret_stays(local: Desk, oss: Oss) -> None:
    """Input, outputs, checkpoints, a copy made twice; then every file of the folder is looked through."""
    oss.put("set/deep/words.txt", b"words\n")
    oss.put("ck/step-1", b"1\n")
    command = (
        "cat $PAI_INPUT_DATA/deep/words.txt $PAI_OUTPUT_CHECKPOINTS/step-1 > $PAI_OUTPUT_MODEL/m; "
        "echo 2 > $PAI_OUTPUT_CHECKPOINTS/step-2"
    )
    places = ("--output-path", f"oss://{oss.bucket}/runs", "--checkpoints-path", f"oss://{oss.bucket}/ck")
    done = local.submit("--input", f"data=oss://{oss.bucket}/set", *places, "--command", command, env=oss.environment)
    job = local.folder().name
    uri = f"oss://{oss.bucket}/runs/{job}"
    assert done.stdout.splitlines()[-1] == f"{uri}/model/" and oss.get(f"runs/{job}/model/m") == b"words\n1\n"
    written = [asked.partition("/")[2] for asked in oss.asked if asked.startswith("PUT")]
    assert written[-1] == f"runs/{job}/model.json" and written.index("ck/step-2") < written.index("ck/launcher-manifest.json")
    assert oss.get("ck/step-1") == b"1\n" and json.loads(oss.get(f"runs/{job}/model.json"))["made_by"]["job_id"] == job
    assert local.run("model-data", job, "--verify", env=oss.environment).stdout == f"{uri}/model/\n"
    copy = f"oss://{oss.bucket}/m1"
    assert local.run("model-data", job, "--to", copy, env=oss.environment).stdout == f"{copy}\n"
    oss.buckets[oss.bucket].pop("m1/launcher-manifest.json")
    again = local.run("model-data", job, "--to", copy, env=oss.environment)
    local.at_rest()
    assert "copying 0 file(s)" in again.stderr and set(oss.objects("m1/")) == {"m1/m", "m1/launcher-manifest.json"}
    for path in local.home.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_wrong_key_is_a_sentence_before_anything_runs(local: Desk, oss: Oss, tmp_path: Path) -> None:
    """For a place to write to, and for an input; the key that was wrong is not shown either."""
    wrong = {**oss.environment, "OSS_ACCESS_KEY_SECRET": "wr0ng-s3cret"}
    for options in (("--output-path", f"oss://{oss.bucket}/runs"), ("--input", f"data=oss://{oss.bucket}/set")):
        done = local.submit(*options, "--command", f"touch {tmp_path}/ran", env=wrong, check=69)
        assert "SignatureDoesNotMatch: The request signature we calculated does not match" in done.stderr
        assert "check the credentials of this terminal (OSS_ACCESS_KEY_ID," in done.stderr
        local.at_rest()
    assert not (tmp_path / "ran").exists() and oss.objects() == {}
    for path in local.home.rglob("*"):
        assert not path.is_file() or b"wr0ng-s3cret" not in path.read_bytes(), path
