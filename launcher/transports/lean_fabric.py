"""Loads fabric without what nobody here asks of it; for whoever wants it soon.

invoke.context imports unittest.mock for its MockContext; with that come asyncio and ssl, a fifth of the whole import (tried:
invoke 2.2).  Nobody here makes a MockContext, so a stand-in is enough while fabric is loaded.  Its own copy of PyYAML is
another fifth, and is wanted only by a person who has a fabric.yaml.  paramiko asks importlib.metadata for its own version, for
which that loads the whole of email and zipfile and reads a file of headers; the version is in the name of that file's folder.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

_MOCK, _YAML, _METADATA = "unittest.mock", "invoke.vendor.yaml", "importlib.metadata"


class _Later(types.ModuleType):
    """A module that is loaded when something of it is used that is not here."""

    def __init__(self, name: str, real: str, **here: Any) -> None:
        super().__init__(name)
        self._real = real
        self.__dict__.update(here)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by every `import`
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self._real), name)


def _version(distribution: str) -> str:
    """The version of a ``distribution`` that is being loaded; it is in `NAME-VERSION.dist-info`, or `.egg-info`, beside it."""
    loading = sys.modules.get(distribution)
    if loading is not None and loading.__file__:
        for found in Path(loading.__file__).parent.parent.glob(f"{distribution}-*.*-info"):
            return found.name.split("-")[1].removesuffix(".dist").removesuffix(".egg")
    return str(_Later(_METADATA, _METADATA).version(distribution))


def _load() -> None:
    made = (_Later(_MOCK, _MOCK, Mock=object), _Later(_YAML, "yaml"), _Later(_METADATA, _METADATA, version=_version))
    stand_ins = {module.__name__: module for module in made if module.__name__ not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        importlib.import_module("fabric")
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


_load()
