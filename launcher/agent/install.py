"""Makes a table of the agent's byte code for this Python, so that later starts neither compile nor look for files.

Runs on the nodes: standard library only, Python 3.8.
"""

import marshal
import os
import zipfile


def compile_into(plain, compiled):
    """Write ``compiled``: {module: its marshalled code} of the archive ``plain``.  A full or read-only disk is no error."""
    part = "%s.%d.part" % (compiled, os.getpid())
    try:
        with zipfile.ZipFile(plain) as source, open(part, "wb") as target:
            marshal.dump({_module(name): _byte_code(source.read(name), name) for name in source.namelist()}, target)
        os.replace(part, compiled)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)


def _module(name):
    words = name[: -len(".py")].split("/")
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def _byte_code(text, name):
    return marshal.dumps(compile(text, name, "exec", dont_inherit=True))
