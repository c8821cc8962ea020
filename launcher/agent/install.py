"""Gives the agent's archive this Python's byte code, so that later starts compile nothing.

Runs on the nodes: standard library only, Python 3.8.
"""

import importlib.util
import marshal
import os
import struct
import zipfile


def compile_into(plain, compiled):
    """Write ``compiled``: the archive ``plain`` with a .pyc beside each .py.  A full or read-only disk is no error."""
    part = "%s.%d.part" % (compiled, os.getpid())
    try:
        with zipfile.ZipFile(plain) as source, zipfile.ZipFile(part, "w") as target:
            for name in source.namelist():
                text = source.read(name)
                target.writestr(name, text)
                if name.endswith(".py"):
                    target.writestr(name + "c", _byte_code(text, name))
        os.replace(part, compiled)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)


def _byte_code(text, name):
    # PEP 552: magic, flags 1 (hash-based, not checked against the source), eight bytes of hash, the code.
    code = compile(text, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + struct.pack("<I8x", 1) + marshal.dumps(code)
