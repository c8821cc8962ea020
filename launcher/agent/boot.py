"""The first lines that run on a node.  The near side sends this text as one line; `python3 -c` executes it.

It is compiled at every start, so it does only what every start needs.  The next line on stdin is the order, a Python
literal (so that nothing needs to be imported to read it):

    marker    two halves; their concatenation goes out first, so that no echo of a shell can be taken for it
    words     for a second channel: become this program (nothing else is read or written by us)
    agent     content hash of the agent; workdir: where it is kept
    first     the first request, so that one round trip is enough when the agent is already here
    seldom    the text of seldom.py: what is to do when it is not here, or for words

After the marker one byte is written: `+` the agent is here, `-` send it, `!` this Python is too old.
"""

import sys


def boot():
    reader, writer = sys.stdin.buffer, sys.stdout.buffer
    order = eval(reader.readline().decode())  # noqa: S307 - this very text came from the same sender
    writer.write("".join(order["marker"]).encode())
    if sys.version_info < (3, 8):
        writer.write(b"!" + sys.version.split()[0].encode())
        return
    import gc
    import marshal
    import os

    gc.set_threshold(50000)  # the agent makes little garbage; looking for it while code is loaded takes longer than the code
    seldom = {}
    if "words" in order:
        writer.flush()
        exec(order["seldom"], seldom)  # noqa: S102 - likewise
        seldom["become"](order["words"])
    base = os.path.join(os.path.abspath(os.path.expanduser(order["workdir"])), "node", "agents", order["agent"])
    order["archive"], compiled = base + ".pyz", "%s.%s" % (base, sys.implementation.cache_tag)
    folder, me = os.path.dirname(base), os.geteuid()
    # What lies there is executed. 65534: what root writes on a file system of another machine may be nobody's.
    if os.path.lexists(folder) and os.lstat(folder).st_uid not in ((0, 65534) if me == 0 else (0, me)):
        raise PermissionError(1, "it belongs to another user", folder)
    here = os.path.exists(order["archive"])
    writer.write(b"+" if here else b"-")
    writer.flush()
    try:
        with open(compiled, "rb", 0) as file:
            code = memoryview(file.read())
        places = marshal.loads(code)
        begin, end = places["launcher.agent.table"]
        if code[places[""] :] != b"whole":
            raise EOFError
        exec(marshal.loads(code[begin:end]), {"places": places, "code": code})  # noqa: S102 - what `install` compiled here
    except (OSError, EOFError, ValueError, TypeError, LookupError):
        exec(order["seldom"], seldom)  # noqa: S102
        seldom["install"](reader, order["archive"], compiled, here)
    from launcher.agent.session import main

    main(order, reader)


boot()
