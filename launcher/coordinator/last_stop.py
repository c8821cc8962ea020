"""The last thing a coordinator does when a fault of ours ends its job: no command is left running that nobody looks after."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher.errors import LauncherError
from launcher.fleet import Fleet
from launcher.link import Address, Link
from launcher.model import Node, Plan


def stop_now(plan: Plan, nodes: list[Node], fleet: Fleet | None, attempt: int) -> list[str]:
    """Kill an attempt's command on these nodes; the names of the hosts that could not be told.

    The links of ``fleet`` are used where they are open; a coordinator that took over may not have got so far, and its
    fault may lie in what a fleet needs here, so the others are reached anew by nothing but a link.
    """

    def tell(node: Node) -> str | None:
        wish: dict[str, Any] = {"attempt": attempt, "grace": 0, "reason": "failure"}
        try:
            if fleet is not None and fleet.links[node.rank].connected:
                fleet.links[node.rank].post("node_stop", **wish)
                return None
        except LauncherError:
            pass
        link = Link(Address(plan.backend, node.host, node.rank, plan.job_id, plan.ssh, plan.requeue))
        try:
            link.connect(python=node.host.python, venv=node.host.venv)
            link.ask("node_stop", **wish)
        except LauncherError:
            return node.host.name
        finally:
            link.close()
        return None

    with ThreadPoolExecutor(max(len(nodes), 1)) as pool:
        return [name for name in pool.map(tell, nodes) if name is not None]
