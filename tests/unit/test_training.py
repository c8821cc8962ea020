"""From what was said to what the training is told: precedence, masks, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.model import Command, to_json
from launcher.planning import Request, draft

TRUE = Command(shell="true")


def job(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text + "\ncommand: 'true'\nbackend: local\n")
    return str(path)


def test_flags_win_over_the_job_file_name_by_name(tmp_path: Path) -> None:
    """The order is the file's, what the flags add comes behind."""
    file = job(tmp_path, "hyperparameters: {lr: 0.1, epochs: 3, layers: [1, {a: null}], on: yes}\nlabels: {team: a, run: 7}")
    made = draft(Request(job_file=file, hyperparameters={"epochs": 4, "seed": 1}, labels={"team": "b"}), {})
    assert list(made.environment["hyperparameters"].items()) == [
        ("lr", 0.1), ("epochs", 4), ("layers", [1, {"a": None}]), ("on", True), ("seed", 1),
    ]  # fmt: skip
    assert made.plan.spec.hyperparameters == made.environment["hyperparameters"]
    assert made.plan.spec.labels == {"team": "b", "run": "7"}
    assert made.plan.origins["hyperparameters.lr"] == "job file" and made.plan.origins["hyperparameters.seed"] == "--hp"


def test_secrets_are_masked_wherever_they_are_nested() -> None:
    """The plan, which others may read, has a mask; the environment's file, which they may not, has the value."""
    given = {"api_key": "hush", "wandb": {"token": "hush", "project": "p"}, "list": [{"password": "hush"}]}
    made = draft(Request(command=TRUE, backend="local", hyperparameters=given), {})
    assert "hush" not in json.dumps(to_json(made.plan)) and made.environment["hyperparameters"] == given
    assert made.plan.spec.hyperparameters["wandb"] == {"token": "****", "project": "p"}


def test_a_job_without_them_stores_nothing() -> None:
    """No key of its own in the environment's file."""
    assert set(draft(Request(command=TRUE, backend="local"), {}).environment) == {"all", "each", "nodes"}


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (Request(command=TRUE, backend="local", hyperparameters={"a-b": 1, "a_b": 2}), "PAI_HPS_A_B"),
        (Request(command=TRUE, backend="local", hyperparameters={"a b": 1}), "a name has no blanks"),
        (Request(command=TRUE, backend="local", labels={"": "x"}), "a label's name"),
        (Request(command=TRUE, backend="local", labels={"x": "a\nb"}), "a label's text"),
        (Request(command=TRUE, backend="local", labels={"x": 3}), "name and text are texts"),  # type: ignore[dict-item]
    ],
)
def test_what_cannot_be_is_named(request_: Request, complaint: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError) as caught:
        draft(request_, {})
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hyperparameters: {a b: 1}", "job.yaml:1:19: hyperparameters.a b: a name has no blanks"),
        ("hyperparameters: {x: 010}", "job.yaml:1:22: hyperparameters.x: a number: a text, a number"),
        ("hyperparameters: [1]", "hyperparameters"),
        ("labels: {a b: x}", "a label's name"),
        ("labels: {x: true}", "labels.x"),
    ],
)
def test_a_job_file_names_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    """File, line, column, and what is allowed."""
    with pytest.raises(UsageError) as caught:
        draft(Request(job_file=job(tmp_path, text)), {})
    assert complaint in str(caught.value)
