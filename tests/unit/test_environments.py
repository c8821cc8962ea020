"""What an image's URI means, and the exact command line that it makes of a command on a node."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.environments import Environment, Place, Wrapped, is_uri, parse, wrap

JOB = "/w/node/jobs/j-1"
USER = {"uid": 1000, "gid": 100, "groups": [4, 100], "user": "train", "nvidia": False, "amd": False, "devices": []}
ENV = {
    "RANK": "1",
    "API_TOKEN": "s3cret $(x)",
    "PATH": "/mine/bin",
    "PAI_WORKING_DIR": f"{JOB}/code/",
    "PAI_OUTPUT_MODEL": f"{JOB}/output/model/",
    "NOTE": f"{JOB}/code/",
}
INSIDE = {"PAI_WORKING_DIR": "/ml/usercode/", "PAI_OUTPUT_MODEL": "/ml/output/model/", "PET_LOG_DIR": "/ml/logs/attempt_2"}
MOUNTS = [
    *("--mount", f"type=bind,source={JOB}/code,target=/ml/usercode"),
    *("--mount", f"type=bind,source={JOB}/input/config,target=/ml/input/config,readonly"),
    *("--mount", f"type=bind,source={JOB}/output,target=/ml/output"),
    *("--mount", f"type=bind,source={JOB}/rank-1/spool/ranks,target=/ml/logs"),
]
ENGINE_FREE = {name: value for name, value in {**ENV, **INSIDE}.items() if name != "PATH"}


def wrapped(uri: str, argv: tuple[str, ...] = ("torchrun", "a b.py"), env: dict[str, str] = ENV, **told: Any) -> Wrapped:
    """The command on node 1 of job j-1, second attempt but one."""
    place = Place("j-1", 1, 2, JOB, {**USER, "logs": f"{JOB}/rank-1/spool/ranks", "bin": None, **told})
    return wrap(parse(uri), argv, env, place)


def test_docker_runs_the_command_as_the_nodes_user_in_pais_folders_and_shows_no_value() -> None:
    """Host network and IPC, an init, a name and labels to find it by; variables by name, but for those that are the client's."""
    made = wrapped("docker://r.example:5000/torch:2.4", program="/usr/bin/docker", rootless=False)
    assert list(made.argv) == [
        *("/usr/bin/docker", "run", "--rm", "--init", "--name", "launcher-j-1-node1-attempt2"),
        *("--label", "launcher.job=j-1", "--label", "launcher.rank=1", "--network", "host", "--ipc", "host"),
        *("--security-opt", "label=disable", "--log-driver", "none"),
        *("--user", "1000:100", "--group-add", "4"),
        *MOUNTS,
        *("--workdir", "/ml/usercode", "--env", "API_TOKEN", "--env", "CUDA_VISIBLE_DEVICES", "--env", "HIP_VISIBLE_DEVICES"),
        *("--env", "NOTE", "--env", "PAI_OUTPUT_MODEL", "--env", "PAI_WORKING_DIR", "--env", "PET_LOG_DIR", "--env", "RANK"),
        *("--env", "ROCR_VISIBLE_DEVICES", "--env", "HOME=/tmp", "--env", "LOGNAME=train", "--env", "PATH=/mine/bin"),
        *("--env", "USER=train", "--entrypoint", "torchrun", "r.example:5000/torch:2.4", "a b.py"),
    ]
    assert made.env == ENGINE_FREE
    assert made.stop == ("/usr/bin/docker", "rm", "--force", "launcher-j-1-node1-attempt2")


@pytest.mark.parametrize(
    ("told", "there", "absent"),
    [
        ({"uid": 0}, ["--user", "0:0"], ["--group-add", "HOME=/tmp"]),
        ({"rootless": True}, ["--user", "0:0"], ["--group-add", "HOME=/tmp"]),
        ({"nvidia": True}, ["--gpus", "all"], []),
        ({"nvidia": True}, ["--ulimit", "memlock=-1"], []),
        ({"amd": True, "devices": ["/dev/kfd", "/dev/dri"]}, ["--device", "/dev/kfd", "--device", "/dev/dri"], ["--gpus"]),
        ({"devices": ["/dev/infiniband"]}, ["--device", "/dev/infiniband"], []),
    ],
    ids=["root", "rootless", "nvidia", "nvidia: memory", "amd", "infiniband"],
)
def test_docker_gets_what_the_node_has(told: dict[str, Any], there: list[str], absent: list[str]) -> None:
    """GPUs and InfiniBand where there are some; a user of its own only where the engine's root is not that user."""
    words = list(wrapped("docker://t", program="docker", **{"rootless": False, **told}).argv)
    begin = words.index(there[0]) if there else 0
    assert words[begin : begin + len(there)] == there
    assert not set(absent) & set(words)


@pytest.mark.parametrize("uri", ["docker://t", "podman://t", "apptainer:///t.sif"])
@pytest.mark.parametrize("name", ["DOCKER_PASSWORD", "CONTAINER_TOKEN", "APPTAINER_DOCKER_PASSWORD", "XDG_KEY", "HF_TOKEN"])
def test_no_secret_is_on_a_command_line(uri: str, name: str) -> None:
    """Also one whose name looks like the client's own; inside it is there."""
    made = wrapped(uri, env={name: "s3cret"}, program="/bin/x", rootless=False, image="/t.sif")
    assert not [word for word in made.argv if "s3cret" in word]
    assert "s3cret" in made.env.values() and (name in made.argv or f"APPTAINERENV_{name}" in made.env)


def test_a_path_with_a_comma_is_one_mount() -> None:
    """The value of --mount is CSV."""
    place = Place("j", 0, 0, "/w/a,b", {**USER, "logs": "/l", "program": "docker", "rootless": False})
    words = wrap(parse("docker://t"), ["x"], {}, place).argv
    assert 'type=bind,"source=/w/a,b/code",target=/ml/usercode' in words


def test_data_is_found_at_pais_paths_wherever_it_is_on_the_node() -> None:
    """Read only; a single file by its name; and what links in it lead to, where they lead on the node."""
    inputs = {
        "train": {"path": f"{JOB}/input/data/train", "real": "/w/inputs/1/tree", "file": False, "more": ["/data/a", "/w/x"]},
        "words": {"path": f"{JOB}/input/data/words/v.txt", "real": "/data/v.txt", "file": True, "more": ["/data/a"]},
    }
    told = {**USER, "logs": "/l", "program": "docker", "rootless": False}
    env = {"PAI_INPUT_TRAIN": f"{JOB}/input/data/train", "PAI_INPUT_WORDS": f"{JOB}/input/data/words/v.txt"}
    made = wrap(parse("docker://t"), ["x"], env, Place("j-1", 0, 0, JOB, told, inputs=inputs))
    mounts = [word for word in made.argv if word.startswith("type=bind")][4:]
    assert mounts == [
        "type=bind,source=/w/inputs/1/tree,target=/ml/input/data/train,readonly",
        "type=bind,source=/data/v.txt,target=/ml/input/data/words/v.txt,readonly",
        "type=bind,source=/data/a,target=/data/a,readonly",
        "type=bind,source=/w/x,target=/w/x,readonly",
    ]
    assert made.env["PAI_INPUT_TRAIN"] == "/ml/input/data/train"
    assert made.env["PAI_INPUT_WORDS"] == "/ml/input/data/words/v.txt"


def test_podman_keeps_the_users_id_and_is_removed_at_once() -> None:
    """No engine of root's: the user is mapped, and limits are the host's."""
    made = wrapped("podman://t:1", program="/bin/podman", rootless=False, nvidia=True)
    assert list(made.argv[: made.argv.index("--mount")]) == [
        *("/bin/podman", "run", "--rm", "--init", "--name", "launcher-j-1-node1-attempt2"),
        *("--label", "launcher.job=j-1", "--label", "launcher.rank=1", "--network", "host", "--ipc", "host"),
        *("--ulimit", "host", "--security-opt", "label=disable", "--log-driver", "none", "--stop-timeout", "0"),
        *("--userns", "keep-id", "--user", "1000:100", "--device", "nvidia.com/gpu=all"),
    ]
    assert list(made.argv[-4:]) == ["--entrypoint", "torchrun", "t:1", "a b.py"]
    assert made.stop == ("/bin/podman", "rm", "--force", "--ignore", "launcher-j-1-node1-attempt2")


def test_apptainer_binds_the_same_folders_and_hands_variables_on_as_they_are() -> None:
    """Its processes are below the agent: nothing else has to end them."""
    made = wrapped("apptainer:///i/t.sif", program="/usr/bin/apptainer", image="/i/t.sif", nvidia=True)
    assert list(made.argv) == [
        *("/usr/bin/apptainer", "exec", "--cleanenv", "--nv", "--bind", f"{JOB}/code:/ml/usercode"),
        *("--bind", f"{JOB}/input/config:/ml/input/config:ro", "--bind", f"{JOB}/output:/ml/output"),
        *("--bind", f"{JOB}/rank-1/spool/ranks:/ml/logs", "--pwd", "/ml/usercode", "/i/t.sif", "torchrun", "a b.py"),
    ]
    handed = {f"APPTAINERENV_{name}": value for name, value in {**ENV, **INSIDE, "PYTHONNOUSERSITE": "1"}.items()}
    assert made.env == {**ENGINE_FREE, "PYTHONNOUSERSITE": "1", **handed, "APPTAINER_NO_EVAL": "1"}
    assert made.stop is None


def test_singularity_is_told_by_its_own_names() -> None:
    """The same program under its old name."""
    made = wrapped("apptainer:///i/t.sif", program="/usr/bin/singularity", image="/i/t.sif")
    assert made.env["SINGULARITYENV_RANK"] == "1"
    assert "--nv" not in made.argv


def test_what_is_done_before_the_command_has_a_container_of_its_own_and_no_logs() -> None:
    """A look into the image, say: its name is another one, and there is no rank yet that could write a log."""
    place = Place("j-1", 1, 0, JOB, {**USER, "logs": "/l", "program": "docker", "rootless": False}, ("/venvs/x",), {}, "look")
    made = wrap(parse("docker://t"), ["sh"], {}, place)
    assert "launcher-j-1-node1-look" in made.argv
    assert "type=bind,source=/venvs/x,target=/venvs/x" in made.argv
    assert not [word for word in made.argv if "/ml/logs" in word or "PET_LOG_DIR" in word]


def test_venv_and_pyxis_change_no_command() -> None:
    """The one is a directory in PATH; in the other the agent itself is inside."""
    for uri in ("venv:/opt/t", "pyxis://nvcr.io#nvidia/pytorch:24.05"):
        assert wrapped(uri) == Wrapped(("torchrun", "a b.py"), ENV)


def test_conda_is_activated_by_its_variables_and_by_scripts_where_there_are_some() -> None:
    """A variable that the user sets wins."""
    made = wrapped("conda:t", env={"CONDA_SHLVL": "7"}, prefix="/c/envs/t", name="t", shell=None)
    assert made == Wrapped(("torchrun", "a b.py"), {"CONDA_PREFIX": "/c/envs/t", "CONDA_DEFAULT_ENV": "t", "CONDA_SHLVL": "7"})
    made = wrapped("conda:t", prefix="/c/envs/t", name="t", shell="/bin/bash")
    assert made.argv[:2] == ("/bin/bash", "-c")
    assert made.argv[3:] == ("sh", "torchrun", "a b.py")


def test_module_loads_in_a_login_shell() -> None:
    """The words of the command are words still."""
    made = wrapped("module:cuda/12.1,pytorch/2.4")
    assert made.argv[:2] == ("/bin/sh", "-c")
    assert made.argv[3:] == ("sh", "cuda/12.1 pytorch/2.4", "torchrun", "a b.py")


@pytest.mark.parametrize(
    ("uri", "environment"),
    [
        ("venv:/opt/t", Environment("venv", "/opt/t")),
        ("venv:~/t", Environment("venv", "~/t")),
        ("conda:t", Environment("conda", "t")),
        ("conda:/c/envs/t", Environment("conda", "/c/envs/t")),
        ("module:a/1 b/2", Environment("module", "a/1 b/2")),
        ("docker://pytorch/pytorch:2.4.0", Environment("docker", "pytorch/pytorch:2.4.0")),
        ("podman://localhost/t", Environment("podman", "localhost/t")),
        ("apptainer:///i/t.sif", Environment("apptainer", "/i/t.sif")),
        ("apptainer://library://a/b", Environment("apptainer", "library://a/b")),
        ("pyxis:///i/t.sqsh", Environment("pyxis", "/i/t.sqsh")),
        ("node:", None),
    ],
)
def test_a_uri_names_an_environment(uri: str, environment: Environment | None) -> None:
    """All of the schemes."""
    assert is_uri(uri)
    assert parse(uri) == environment


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("docker:t", "docker://IMAGE"),
        ("docker://", "docker://IMAGE"),
        ("docker://--privileged", "docker://IMAGE"),
        ("docker://a b", "docker://IMAGE"),
        ("venv:t", "a path on the node"),
        ("module:", "module:NAME/VERSION"),
        ("module:a -b", "module:NAME/VERSION"),
        ("kubernetes://t", "venv:/path, conda:NAME-OR-PREFIX"),
        ("torch", "no image"),
    ],
)
def test_what_is_no_uri_is_refused_with_how_one_is_written(uri: str, sentence: str) -> None:
    """An image's name can never be an option of its runtime."""
    with pytest.raises(ValueError, match=sentence):
        parse(uri)
