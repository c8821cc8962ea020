"""retrieve() and list_images() answer from the cluster file, and a job's image is what it lists there or a URI."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from launcher import arguments
from launcher.errors import UsageError, WrongArguments
from launcher.images import ImageScope, list_images, retrieve
from launcher.model import Command
from launcher.planning import Request, draft

CLUSTER = """
hosts: [n1, n2]
images:
  - {name: old, uri: "docker://t:1.9", framework_name: pytorch, framework_version: 1.9, accelerator_type: GPU}
  - {name: ten, uri: "docker://t:1.10", framework_name: pytorch, framework_version: 1.10, accelerator_type: GPU}
  - {name: rc, uri: "docker://t:rc", framework_name: pytorch, framework_version: 1.10rc1, accelerator_type: GPU}
  - {name: cpu, uri: "docker://t:cpu", framework_name: PyTorch, framework_version: 1.10.2,
     accelerator_type: CPU, image_scope: training}
  - {name: serve, uri: "docker://s", framework_name: pytorch, framework_version: "2", image_scope: inference}
  - {name: any, uri: "conda:jax"}
"""


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster file in it, as a job would find it, and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCHER_CLUSTER", raising=False)
    monkeypatch.setenv("LAUNCHER_CONFIG", "none")
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    arguments.warn_once.cache_clear()
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return tmp_path


@pytest.mark.parametrize(
    ("framework", "version", "accelerator", "scope", "name"),
    [
        ("pytorch", "1.9", "GPU", "training", "old"),
        ("PyTorch", "1.10", "gpu", "training", "ten"),
        ("pytorch", "1.10", "CPU", "training", "cpu"),
        ("pytorch", "1", "GPU", "training", "ten"),
        ("pytorch", "latest", "GPU", "training", "ten"),
        ("pytorch", "latest", "CPU", "inference", "serve"),
        ("jax", "0.4", "CPU", "training", "any"),
    ],
)
def test_retrieve_finds_by_what_the_file_says(framework: str, version: str, accelerator: str, scope: str, name: str) -> None:
    """Exact versions first, then the newest that begins so; 1.10 is newer than 1.9 and than its release candidate."""
    assert retrieve(framework, version, accelerator, scope).image_name == name


def test_retrieve_gives_pais_fields() -> None:
    """As PAI's ImageInfo has them; CPU and training unless said otherwise."""
    found = retrieve("pytorch", framework_version="1.10.2")
    assert (found.image_uri, found.framework_name, found.framework_version) == ("docker://t:cpu", "PyTorch", "1.10.2")
    assert (found.accelerator_type, found.python_version, found.image_scope) == ("CPU", None, "training")
    assert retrieve("pytorch", "1.10.2", accelerator_type=None, image_scope=None) == found
    assert retrieve("pytorch", "LATEST") == retrieve("pytorch", "latest")


def test_an_unknown_image_is_an_error_that_lists_them(lab: Path) -> None:
    """Not the next best one."""
    (lab / "cluster.yaml").write_text(CLUSTER.replace('  - {name: any, uri: "conda:jax"}\n', ""))
    with pytest.raises(UsageError, match=r"cluster\.yaml: there is no image for pytorch 3\.0, GPU, training") as caught:
        retrieve("pytorch", framework_version="3.0", accelerator_type="GPU")
    assert "ten: pytorch 1.10, GPU, docker://t:1.10" in caught.value.problems


def test_without_images_the_nodes_own_python_is_given_and_warned_about_once(lab: Path) -> None:
    """So that PAI's example runs before anybody wrote a cluster file for it."""
    (lab / "cluster.yaml").unlink()
    with pytest.warns(UserWarning, match="^there is no cluster file, and so no `images:`; .* the nodes' own Python"):
        found = retrieve("pytorch", framework_version="1.12", accelerator_type="GPU")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert retrieve("pytorch", "1.12").image_uri == found.image_uri
    assert list_images() == []
    plan = draft(Request(command=Command(shell="true"), image=found.image_uri), {}).plan
    assert plan.spec.image is None


def test_what_cannot_be_asked_for_is_told_at_once(lab: Path) -> None:
    """With a cluster file or without: nothing is taken for the nodes' own Python by mistake."""
    for _ in ("with images", "without"):
        with pytest.raises(WrongArguments) as told:
            retrieve("pytorch", 1.12, "TPU", "train", session="lab")  # type: ignore[arg-type]
        assert told.value.problems == (
            "framework_version: a text is wanted, not a float",
            "accelerator_type: 'TPU': one of CPU, GPU",
            "image_scope: 'train': one of training, inference, develop",
            "session: a launcher.session.Session is wanted, not a text",
        )
        with pytest.raises(WrongArguments, match="framework_version: a text is wanted, not None"):
            retrieve("pytorch", None)  # type: ignore[arg-type]
        with pytest.raises(WrongArguments, match="image_scope: 'all'"):
            list_images(image_scope="all")
        (lab / "cluster.yaml").unlink(missing_ok=True)


def test_the_warning_says_which_file_has_none(lab: Path) -> None:
    """Or that there is no file at all."""
    (lab / "cluster.yaml").write_text("name: bare\nhosts: [a]\n")
    with pytest.warns(UserWarning, match=r"^cluster\.yaml has no `images:`; commands run with the nodes' own Python"):
        retrieve("pytorch", "1.12")


def test_list_images_filters() -> None:
    """In the file's order."""
    assert [image.image_name for image in list_images()] == ["old", "ten", "rc", "cpu", "serve", "any"]
    assert [image.image_name for image in list_images(framework_name="pytorch", image_scope="inference")] == [
        "old", "ten", "rc", "serve", "any",
    ]  # fmt: skip
    assert list_images(image_scope=ImageScope.INFERENCE) == list_images(image_scope="inference")


def _image(image: str, **more: str) -> str | None:
    return draft(Request(command=Command(shell="true"), image=image, **more), {}).plan.spec.image  # type: ignore[arg-type]


def test_a_job_names_its_image_or_a_uri() -> None:
    """The plan holds the URI."""
    assert _image("ten") == "docker://t:1.10"
    assert _image("venv:~/t") == "venv:~/t"
    assert _image("node:") is None


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        ("tem", r"no image is called 'tem' \(did you mean ten\?\)"),
        ("r.example/t:1", "docker://r.example/t:1"),
        ("singularity://t", r"there are venv:/path, conda:NAME-OR-PREFIX, .*, apptainer:///path/to/image.sif, pyxis://IMAGE"),
        ("docker:t", "written as docker://IMAGE"),
        ("pyxis://t", "only Slurm starts containers by pyxis"),
    ],
)
def test_what_is_no_image_is_refused_before_anything_is_asked(image: str, sentence: str) -> None:
    """With where it was said."""
    with pytest.raises(UsageError) as caught:
        _image(image)
    assert re.search(sentence, str(caught.value)), str(caught.value)
    assert "--image" in str(caught.value)


def test_a_job_file_names_an_image_too(lab: Path) -> None:
    """Its line is where the value came from."""
    (lab / "job.yaml").write_text("command: 'true'\nimage: ten\n")
    plan = draft(Request(job_file="job.yaml"), {}).plan
    assert plan.spec.image == "docker://t:1.10"
    assert plan.origins["image"].endswith("job.yaml:2")


def test_in_pyxis_the_agent_runs_inside_and_takes_the_images_python(lab: Path) -> None:
    """No path to a Python of the nodes holds there; and a home directory is another one."""
    text = "backend: slurm\ndefaults: {python: /opt/python}\nslurm: {workdir: WHERE}\n"
    (lab / "cluster.yaml").write_text(text.replace("WHERE", "/scratch"))
    request = Request(command=Command(shell="true"), image="pyxis://t", nodes=2)
    template = draft(request, {}).plan.template
    assert template is not None and (template.python, template.venv, template.workdir) == (None, None, "/scratch")
    (lab / "cluster.yaml").write_text(text.replace("WHERE", "~/scratch"))
    with pytest.raises(UsageError, match="~ is another directory"):
        draft(request, {})
