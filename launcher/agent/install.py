"""Makes a table of the agent's byte code for this Python, so that later starts neither compile nor look for files.

Runs on the nodes: standard library only, Python 3.8.
"""

import __future__

import marshal
import os
import zipfile

from launcher.agent.layout import part_of

_FUTURE = b"from __future__ import annotations"
_WHOLE = b"whole"


def compile_into(plain, compiled):
    """Write ``compiled``: the byte code of the archive ``plain``.  A full or read-only disk is no error.

    First comes {module: (begin, end)}, counted from the end of the file; then their marshalled code, one after the other; then,
    from where "" says on, a word that says that nothing is lacking.
    """
    part = part_of(compiled)
    try:
        with zipfile.ZipFile(plain) as source:
            codes = {_module(name): _byte_code(source.read(name), name) for name in source.namelist()}
        places, begin = {"": -len(_WHOLE)}, -len(_WHOLE) - sum(map(len, codes.values()))
        for name, code in codes.items():
            places[name] = begin, begin + len(code)
            begin += len(code)
        with open(part, "wb") as target:
            target.write(b"".join([marshal.dumps(places), *codes.values(), _WHOLE]))
        os.replace(part, compiled)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)


def _module(name):
    words = name[: -len(".py")].split("/")
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def _byte_code(text, name):
    """Without docstrings; what it asks of the future is a flag of the compiler, not a module to be looked for at each start."""
    text = text.replace(b"\n%s\n" % _FUTURE, b"\n\n")
    return marshal.dumps(compile(text, name, "exec", __future__.annotations.compiler_flag, dont_inherit=True, optimize=2))
