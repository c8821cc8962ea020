"""Loads fabric without what nobody here asks of it; for whoever wants it soon.

invoke.context imports unittest.mock for its MockContext; with that come asyncio and ssl, a fifth of the whole import (tried:
invoke 2.2).  Nobody here makes a MockContext, so a stand-in is enough while fabric is loaded.  Its own copy of PyYAML is
another fifth, and is wanted only by a person who has a fabric.yaml.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

_MOCK, _YAML = "unittest.mock", "invoke.vendor.yaml"


class _Later(types.ModuleType):
    """PyYAML, loaded when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("yaml"), name)


def _load() -> None:
    mock = types.ModuleType(_MOCK)
    mock.Mock = object  # type: ignore[attr-defined]
    stand_ins = {name: made for name, made in ((_MOCK, mock), (_YAML, _Later(_YAML))) if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        importlib.import_module("fabric")
    finally:
        for name in stand_ins:
            del sys.modules[name]


_load()
