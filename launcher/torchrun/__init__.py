"""Everything we know of torchrun's words: its flags and variables here, its reports, and what a dying rank writes, in `report`.

Foreign words live here and nowhere else.  What is said of a version was read in that version's source.  No torch is imported.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
"""what starts several processes per node and numbers them"""


# --- What we say to torchrun ---------------------------------------------------------------------------------------------


def command_line(
    script: Sequence[str],
    python: str,
    *,
    master_addr: str,
    master_port: int | str,
    nnodes: int | str,
    node_rank: int | str,
    nproc: int | str,
) -> list[str]:
    """The argv that runs ``script`` (its words, or ``-m``, a module, and its words) ``nproc`` times on one of ``nnodes`` nodes.

    Static rendezvous, because only there --node_rank decides who is who.  Underscores, because torch 1 knows no hyphens in
    its flags.  ``--`` shields the script's own words: without it torchrun refuses `train.py --r 4`, as an ambiguous flag of
    its own.
    """
    address = f"[{master_addr}]" if ":" in master_addr and not master_addr.startswith("[") else master_addr
    module = list(script[:1]) if script and script[0] in ("-m", "--module") else []
    return [
        *(python, "-m", "torch.distributed.run"),
        *(f"--nnodes={nnodes}", f"--node_rank={node_rank}", f"--nproc_per_node={nproc}"),
        *(f"--master_addr={address}", f"--master_port={master_port}"),
        *module,
        "--",
        *script[len(module) :],
    ]


def as_typed(script: Sequence[str]) -> str:
    """`command_line` as one would type it on any of the nodes, in the command's environment, which has the numbers."""
    words = command_line(
        script,
        "python",
        master_addr="$MASTER_ADDR",
        master_port="$MASTER_PORT",
        nnodes="$WORLD_SIZE",
        node_rank="$RANK",
        nproc="$NPROC_PER_NODE",
    )
    ours = len(words) - len(script)
    return " ".join([*words[:ours], *map(shlex.quote, words[ours:])])


def settings(grace: float, log_dir: str) -> dict[str, str]:
    """The variables that give torchrun its defaults, in a verbatim command too; a flag in the command wins over each.

    ``grace`` is in seconds, ``log_dir`` a directory of one attempt on the node.  Since 1.9 both torchrun and
    torch.distributed.launch read PET_<FLAG>.  Not set: OMP_NUM_THREADS (torchrun's own default, 1 where several processes run, is
    sensible and said in its log), and PET_EVENT_LOG_HANDLER=console: its JSON lines would stand in the user's stderr, and they
    call a peer that torchrun itself ended FAILED just like the rank that failed first; the failure table tells the two apart.
    """
    return {
        # <log_dir>/<run id>_<random>/attempt_<restart>/<local rank>/{stdout,stderr}.log; the run id is `none` unless given.
        "PET_LOG_DIR": log_dir,
        # 3: both streams of every rank into those files, and only there.
        "PET_REDIRECTS": "3",
        # How often a dead rank is looked for.  1.9 and 1.12 would do it every 5 seconds; newer versions have this value already.
        "PET_MONITOR_INTERVAL": "0.1",
        # Seconds from TERM to KILL when torchrun itself is told to end; it must be a whole number.  Versions that do not know it,
        # and every version when it ends the peers of a failed rank, take 30.  1.9 dies of TERM at once and leaves its ranks.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(0, math.ceil(grace))),
        # torchrun starts Python with -u itself; a plain command must not sit on its output either.
        "PYTHONUNBUFFERED": "1",
    }


def static_node(nodes: str, rank: str, nproc: str, master: tuple[str, str]) -> dict[str, str]:
    """The variables that tell torchrun which node of a job it is: with them a bare `torchrun SCRIPT` is the whole command.

    A flag in the command wins over each.  Without an endpoint of its own torchrun keeps to static rendezvous, where
    --node_rank holds.
    """
    return {
        "PET_NNODES": nodes,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": nproc,
        "PET_MASTER_ADDR": master[0],
        "PET_MASTER_PORT": master[1],
    }


# --- What a person says to torchrun -----------------------------------------------------------------------------------------

_NPROC = re.compile(r"(?<![\w-])--?nproc[_-]per[_-]node(?:=|\s+)(\S*)")
_SEPARATORS = re.compile(r"[\s;&|()'\"`{}]+")
_NEEDS_VALUE = re.compile(r"--?(master[_-]addr|master[_-]port|nnodes|node[_-]rank|nproc[_-]per[_-]node|rdzv[_-]endpoint)(=|\Z)")


def nproc_in(shell_text: str) -> int | None:
    """Processes per node that a verbatim command asks for; None where it does not say, or not as one plain number."""
    found = {match[1].strip("'\"").rstrip(";") for match in _NPROC.finditer(shell_text.replace("\\\n", " "))}
    value = found.pop() if len(found) == 1 else ""
    return int(value) if re.fullmatch(r"[0-9]{1,6}", value) else None


def uses_launcher(command: str | Sequence[str]) -> bool:
    """Whether a command (shell text, or argv) starts one of LAUNCHERS."""
    text = command if isinstance(command, str) else "\n".join(command)
    words = [word for word in _SEPARATORS.split(text.replace("\\\n", " ")) if word]
    return any(_starts_launcher(words, place) for place in range(len(words)))


def _starts_launcher(words: Sequence[str], place: int) -> bool:
    name = words[place].rsplit("/", 1)[-1]
    before = words[place - 1] if place else ""
    after = words[place + 1] if place + 1 < len(words) else ""
    if name == "torchrun":
        return True
    if name == "accelerate":
        return after == "launch"
    if name == "deepspeed":  # also a value, as in `--strategy deepspeed`
        return after != "" and not (before.startswith("--") and "=" not in before)
    module = name.removesuffix(".py").replace("/", ".")
    known = name in LAUNCHERS or module in ("accelerate.commands.launch", "deepspeed.launcher.runner")
    return known and re.fullmatch(r"-\w*m", before) is not None


def empty_master_hint(argv: Sequence[str]) -> str | None:
    """The sentence for an argv in which a flag has no value, because the submitting shell expanded $MASTER_ADDR or its like."""
    if not uses_launcher(argv):
        return None
    for word, after in zip(argv, [*argv[1:], "--"], strict=True):
        flag = _NEEDS_VALUE.match(word)
        if flag and word == flag[0] and (flag[2] or after.startswith("--")):
            return (
                f"{word} has no value: the shell here expanded a variable that only exists on the nodes; "
                "give the whole command as --command '...' in single quotes, and each node fills it in"
            )
    return None


_TORCHRUN = re.compile(r"(?<![\w./-])(?:[\w./-]*/)?torchrun(?![\w.-])|-\w*m\s+torch\.distributed\.(?:run|launch)\b")
_PLACED = re.compile(r"--?(?:node[_-]rank|rdzv[_-]\w+|standalone)\b|\b(?:PET_|srun\b|mpirun\b)")


def unplaced(text: str) -> bool:
    """Whether a command starts torchrun and nothing in it says which node this one is: each would take itself for the first."""
    return _TORCHRUN.search(text) is not None and _PLACED.search(text) is None
