"""The traceback, the hint and the blame that are read from a rank's stderr, against tracebacks of the running Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.torchrun.report import is_consequence, last_traceback, log_hint


def raised(message: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    main()\n{message}\n'


def stderr_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False).stderr


def test_a_context_is_shown_whole_and_notes_stay() -> None:
    """An exception that came up while another was handled is shown with it, and lines of its message stay."""
    found = last_traceback(stderr_of("try:\n  1/0\nexcept ZeroDivisionError:\n  raise ValueError('one\\ntwo')\n"))
    assert found is not None
    assert "ZeroDivisionError" in found
    assert found.endswith("ValueError: one\ntwo")


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "t.py", line 9, in <module>
  |     raise ExceptionGroup("all of them", [caught(ValueError(1)), caught(TypeError(2))])
  | ExceptionGroup: all of them (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "t.py", line 4, in caught
    |     raise error
    | ValueError: 1
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "t.py", line 4, in caught
    |     raise error
    | TypeError: 2
    +------------------------------------"""


def test_an_exception_group_is_shown_whole() -> None:
    """From the group's head to its last rule, nested tracebacks included, with torch's rank before it or not."""
    assert last_traceback(f"before\n{GROUP}\nafter\n") == GROUP
    marked = "".join(f"[rank0]: {line}\n" for line in GROUP.splitlines())
    assert last_traceback(f"before\n{marked}after\n") == GROUP
    chained = f"{raised('KeyError: 1')}\nDuring handling of the above exception, another exception occurred:\n\n{GROUP}"
    assert last_traceback(chained + "\nafter\n") == chained


def test_log_lines_around_and_among_are_bearable() -> None:
    """What others print before, between the lines of, and after a traceback does not hide it."""
    text = (
        "INFO:root:hello\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in <module>\n    f()\nWARNING:root:slow disk\n  File "a.py", line 2, in f\n    g()\n'
        "mypackage.errors.Broken: really\nW1130 07:51:14.993000 17558 x.py:1] Sending process\nmore\n"
    )
    found = last_traceback(text) or ""
    assert found.startswith("Traceback")
    assert found.endswith("mypackage.errors.Broken: really")
    assert "line 2, in f" in found


def test_an_earlier_traceback_that_was_only_logged_is_not_the_last() -> None:
    """Of two tracebacks that are not chained the last is the one that ended the process."""
    found = last_traceback(
        stderr_of("import logging\ntry:\n  1/0\nexcept Exception:\n  logging.exception('x')\nraise KeyError('y')")
    )
    assert found is not None
    assert "ZeroDivisionError" not in found
    assert found.endswith("KeyError: 'y'")


def test_what_python_ignores_while_it_ends_is_not_the_cause() -> None:
    """An exception in a destructor is printed after the one that ended the process."""
    program = "class A:\n  def __del__(self):\n    1/0\na = A()\nraise KeyError('y')"
    found = last_traceback(stderr_of(program))
    assert found is not None
    assert found.endswith("KeyError: 'y'")


def test_a_syntax_error_has_no_head_but_is_found() -> None:
    """Python prints a script's own syntax error without `Traceback`."""
    found = last_traceback("  File \"/job/train.py\", line 3\n    def f(\n         ^\nSyntaxError: '(' was never closed\n")
    assert found is not None
    assert found.startswith('  File "/job/train.py"')
    assert found.endswith("was never closed")


def test_a_rank_prefix_is_taken_off() -> None:
    """torch puts the rank before each line of a traceback, empty lines included."""
    plain = stderr_of("try:\n  1/0\nexcept ZeroDivisionError:\n  raise ValueError('x')")
    marked = "".join(f"[rank12]: {line}\n" if line else "[rank12]:\n" for line in plain.splitlines())
    assert last_traceback("[rank3]:[W1130] noise\n" + marked + "noise\n") == last_traceback(plain)


def test_a_deep_recursion_and_no_traceback() -> None:
    """Python's shortened recursion is kept as it is; a text without a traceback has none."""
    assert (last_traceback(stderr_of("def f():\n  f()\nf()")) or "").splitlines()[-1].startswith("RecursionError")
    assert last_traceback("") is None
    assert last_traceback("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n") is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"), "memory is full"),
        (raised("OSError: [Errno 28] No space left on device"), "file system on that node is full"),
        (raised("FileNotFoundError: [Errno 2] No such file or directory: 'conf/a.yaml'"), "no conf/a.yaml: the source folder"),
        (raised("ModuleNotFoundError: No module named 'einops'"), "no module einops"),
        ("usage: t.py\nt.py: error: unrecognized arguments: --local-rank=0\n", "torchrun"),
        ("t.py: error: unrecognized arguments: --local_rank=0\n", "torchrun"),
        (raised("RuntimeError: CUDA error: invalid device ordinal"), "more processes than GPUs"),
        (raised("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms"), "node 0"),
        ("[rank0]:[E205] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(…)\n", "waited in vain"),
    ],
)
def test_a_well_known_cause_has_a_hint(text: str, hint: str) -> None:
    """What often goes wrong is said in one sentence with the next step."""
    assert hint in (log_hint(text) or "")


def test_a_signal_has_a_hint_and_an_own_error_has_none() -> None:
    """A SIGKILL leaves no text but is often the kernel's; about the user's own exceptions nothing is guessed."""
    assert "kernel" in (log_hint("", "SIGKILL") or "")
    assert "PYTHONFAULTHANDLER" in (log_hint("Fatal Python error: Segmentation fault", "SIGSEGV") or "")
    assert log_hint(raised("ValueError: bad luck")) is None


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:4786",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:534] Connection reset by peer [10.0.0.2]:21190",
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited or there was a network error",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ],
)
def test_the_loss_of_a_peer_is_a_consequence(message: str) -> None:
    """gloo's, NCCL's and the store's words for a peer that went away."""
    assert is_consequence(raised(message))


@pytest.mark.parametrize("message", ["ConnectionResetError: [Errno 104] Connection reset by peer", "ValueError: bad luck", ""])
def test_an_own_failure_is_no_consequence(message: str) -> None:
    """A download that broke is the rank's own failure, and so is an exception of its code."""
    assert not is_consequence(raised(message))
    assert not is_consequence("")
