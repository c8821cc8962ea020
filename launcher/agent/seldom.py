"""What the boot of an agent seldom needs: taking the agent in, and becoming another program.

The near side sends this text along with the order; only when there is a use for it, it is compiled.
"""

import os
import sys


def become(words):
    import signal

    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    words = [os.path.expanduser(word) if word.startswith("~") else word for word in words]
    os.execvp(words[0], words)


def install(reader, archive, compiled, here):
    """Make the agent's modules importable; they come as a line with their hash and size, then an archive, unless ``here``."""
    if not here:
        receive(reader, archive)
    sys.path.insert(0, archive)
    from launcher.agent.install import compile_into

    compile_into(archive, compiled)


def receive(reader, path):
    import hashlib

    digest, size = reader.readline().decode().split()
    content = reader.read(int(size))
    if hashlib.sha256(content).hexdigest() != digest:
        raise SystemExit("the agent arrived damaged: %d of %s bytes" % (len(content), size))
    # Nobody else reads what is to lie there: code, data, logs.
    for folder in (os.path.dirname(os.path.dirname(path)), os.path.dirname(path)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    # As layout.part_of, of which nothing is here yet.
    part = "%s.%s.part" % (path, os.urandom(8).hex())
    with open(part, "wb") as file:
        file.write(content)
    os.replace(part, path)
