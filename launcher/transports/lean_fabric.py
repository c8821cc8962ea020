"""Loads fabric without what it has for the tests of its users; for whoever wants it soon.

invoke.context imports unittest.mock for its MockContext; with that come asyncio and ssl, a fifth of the whole import (tried:
invoke 2.2).  Nobody here makes a MockContext, so a stand-in is enough while fabric is loaded.
"""

from __future__ import annotations

import importlib
import sys
import types

_NAME = "unittest.mock"


def _load() -> None:
    if _NAME in sys.modules:
        return
    stand_in = types.ModuleType(_NAME)
    stand_in.Mock = object  # type: ignore[attr-defined]
    sys.modules[_NAME] = stand_in
    try:
        importlib.import_module("fabric")
    finally:
        del sys.modules[_NAME]


_load()
