"""The JSON schemas that editors complete from: `python -m launcher.cluster.schema` writes launcher/schemas/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from launcher.cluster.models import ClusterFile, JobYaml, UserYaml

FOLDER = Path(__file__).parent.parent / "schemas"
SCHEMAS: dict[str, tuple[type[BaseModel], str]] = {
    "cluster.schema.json": (ClusterFile, "cluster.yaml"),
    "job.schema.json": (JobYaml, "job.yaml"),
    "config.schema.json": (UserYaml, "config.yaml"),
}


def schema_text(name: str) -> str:
    """The text of one shipped schema, generated from its model."""
    model, title = SCHEMAS[name]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_plain(model.model_json_schema()),
        "title": title,
    }
    return json.dumps(schema, indent=2, sort_keys=False) + "\n"


def _plain(value: Any) -> Any:
    """Without what only pydantic means: null for "not said" (a key without a value is an error), and generated titles."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _plain(item) for key, item in value.items() if not (key == "title" and isinstance(item, str))}
    if kept.get("default", "") is None:
        del kept["default"]
    members = [member for member in kept.get("anyOf", []) if member != {"type": "null"}]
    if "anyOf" in kept and len(members) == 1:
        del kept["anyOf"]
        return {**members[0], **kept}
    return {**kept, "anyOf": members} if "anyOf" in kept else kept


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name in SCHEMAS:
        (FOLDER / file_name).write_text(schema_text(file_name), encoding="utf-8")
