"""Whether nodes reach each other at any port, as processes of torch must: each asks the next one, around a ring.

That node 0's port is reached says little of the others: gloo and NCCL listen on every node, at ports that the kernel picks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from launcher.errors import NodeError, NodeUnusable
from launcher.fleet import Fleet
from launcher.model import Plan

_PATIENCE = 5.0
"""seconds for a connection"""


def around(plan: Plan, fleet: Fleet, facts: Mapping[int, Mapping[str, Any]], chosen: Mapping[str, Any]) -> list[NodeError]:
    """What is wrong between neighbours.  ``facts`` as `master.choose` was given them, ``chosen`` what it answered."""
    ranks = sorted(facts)
    addresses = {rank: _address(facts[rank], chosen["interfaces"].get(str(rank)), chosen["address"]) for rank in ranks[1:]}
    nonce = os.urandom(16).hex()
    asked = {rank: {"any": True, "nonce": nonce} for rank, address in addresses.items() if address}
    listening, errors = fleet.try_all("probe_listen", asked)
    # The first node listens already, and all have reached it.
    neighbours = {ranks[ranks.index(rank) - 1]: rank for rank in listening}
    requests = {
        rank: {"candidates": [addresses[there]], "port": listening[there]["port"], "nonce": nonce, "patience": _PATIENCE}
        for rank, there in neighbours.items()
    }
    answers, silent = fleet.try_all("probe_connect", requests)
    found = [*errors.values(), *silent.values()]
    for rank, answer in answers.items():
        there = neighbours[rank]
        told = answer["results"].get(addresses[there], {"error": "no answer"})
        if "error" in told:
            where = f"{addresses[there]} port {requests[rank]['port']}"
            what = f"cannot reach node {there} ({plan.nodes[there].host.name}) at {where}"
            step = "open all ports between the nodes, in both directions: torch's processes listen at any of them"
            found.append(PortClosed(what, where=plan.nodes[rank].host.name, lines=[told["error"]], next_step=step))
    return found


class PortClosed(NodeUnusable):
    """A node cannot reach another one at a port that the kernel picked."""


def _address(told: Mapping[str, Any], interface: str | None, like: str) -> str | None:
    """The node's address on the interface that carried the probe, of node 0's kind; None where that is not clear."""
    return next((text for name, text in told["addresses"] if name == interface and (":" in text) == (":" in like)), None)
