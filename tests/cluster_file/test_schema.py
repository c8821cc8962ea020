"""The shipped JSON schemas and the example agree with the models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from launcher.cluster import load_cluster
from launcher.cluster.models import ClusterFile, Defaults, Image, MappingHost, Master, Slurm, Ssh
from launcher.cluster.schema import FOLDER, SCHEMAS, schema_text

EXAMPLE = Path(__file__).parents[2] / "cluster.yaml.example"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_shipped_schema_is_the_generated_one(name: str) -> None:
    """After a change of the models: python -m launcher.cluster.schema."""
    assert (FOLDER / name).read_text(encoding="utf-8") == schema_text(name)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_of_a_schema_explains_itself_and_no_other_is_allowed(name: str) -> None:
    """An editor shows a sentence for each key, and marks every key that the launcher would refuse."""
    schema = json.loads(schema_text(name))
    shapes: list[dict[str, Any]] = [schema, *schema.get("$defs", {}).values()]
    for shape in shapes:
        assert shape["description"]
        assert shape["additionalProperties"] is False
        for key, value in shape["properties"].items():
            assert value.get("description") or "$ref" in value, key
            assert "null" not in json.dumps(value), key


def test_the_example_loads(tmp_path: Path) -> None:
    """A copy of cluster.yaml.example is a valid cluster file where the files that it names are there."""
    for name in ("config", "id_ed25519", "keys/node2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    copy = tmp_path / "cluster.yaml"
    copy.write_text(EXAMPLE.read_text(encoding="utf-8").replace("~/.ssh", str(tmp_path)), encoding="utf-8")
    cluster = load_cluster(copy)
    assert (cluster.name, len(cluster.hosts)) == ("lab", 20)


@pytest.mark.parametrize("model", [ClusterFile, Defaults, MappingHost, Ssh, Master, Slurm, Image])
def test_the_example_names_every_key_with_a_comment(model: type[BaseModel]) -> None:
    """Nothing can be set that the example does not show and explain; sections without a value of their own may do without."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for key in model.model_fields:
        pattern = rf"^\s*(- )?{key}:( .*# \w.*|\s*# \w.*|)$"
        assert re.search(pattern, text, re.MULTILINE), key


def test_the_example_names_its_schema_for_editors() -> None:
    """The first line is what yaml-language-server reads, and the file it names is there."""
    first = EXAMPLE.read_text(encoding="utf-8").splitlines()[0]
    assert (EXAMPLE.parent / first.removeprefix("# yaml-language-server: $schema=")).is_file()
