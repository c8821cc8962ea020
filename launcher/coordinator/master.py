"""Which address and port of node 0 the job uses: one that every other node has just connected to and read a nonce from."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any

from launcher.errors import LauncherError, NodeError, NodesFailed, NodeUnusable
from launcher.fleet import Fleet
from launcher.model import Plan

_CONNECT_SECONDS = 5.0
_VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman", "lxc", "tun", "tap")
"""interfaces whose addresses are rarely meant: tried last"""


def choose(plan: Plan, fleet: Fleet, facts: Mapping[int, Mapping[str, Any]], user: Mapping[str, str]) -> dict[str, Any]:
    """{"address", "port", "interfaces": {rank: name}, "origin"}; raises NodesFailed naming each pair that cannot talk.

    The user's own MASTER_ADDR and MASTER_PORT (flags, then cluster.yaml) win and are checked like any other.  ``facts`` may
    lack nodes that were not reached; where node 0 is one of these, the first of the others stands for it, at its own address.
    """
    nonce, first = os.urandom(16).hex(), min(facts)
    port = _listen(plan, fleet, first, user, nonce)
    asked = (user.get("MASTER_ADDR") or plan.master.address) if first == 0 else None
    origin = "--env" if user.get("MASTER_ADDR") else "cluster.yaml" if plan.master.address else "automatic"
    others = [rank for rank in facts if rank != first]
    if asked:
        _must_be_node_0(plan, fleet, asked, _alternative("address", user))
    if not others:
        return {"address": asked or "127.0.0.1", "port": port, "interfaces": {}, "origin": origin}
    candidates = [asked] if asked else _candidates(plan, facts)
    request = {"candidates": candidates, "port": port, "nonce": nonce, "patience": _CONNECT_SECONDS}
    told = fleet.ask_all("probe_connect", "not every node answers", dict.fromkeys(others, request))
    results = {rank: told[rank]["results"] for rank in others}
    address = next((c for c in candidates if all("interface" in results[rank].get(c, {}) for rank in others)), None)
    if address is None:
        raise _nobody_reaches(plan, first, results, candidates, port)
    here = {text: name for name, text in facts[first]["addresses"]}.get(address)
    if here is None:
        asking = fleet.ask_all("probe_locate", f"node {first} does not answer", {first: {"address": address}})
        here = asking[first].get("interface")
    interfaces = {str(rank): results[rank][address]["interface"] for rank in others}
    return {"address": address, "port": port, "interfaces": {str(first): here, **interfaces}, "origin": origin}


def _listen(plan: Plan, fleet: Fleet, first: int, user: Mapping[str, str], nonce: str) -> int:
    """The port on which the first node listens now: the one that was asked for, else one that it picked."""
    asked = user.get("MASTER_PORT") or plan.master.port
    request = {"port": asked and int(asked), "nonce": nonce}
    try:
        return int(fleet.ask_all("probe_listen", f"no port on node {first}", {first: request})[first]["port"])
    except NodeUnusable as error:
        if asked:
            error.next_step = f"name another port, or {_alternative('port', user)}: a free one is then picked there"
        raise


def _alternative(key: str, user: Mapping[str, str]) -> str:
    """How to leave the choice of node 0's ``key`` (address, port) to us; ``user`` as in `choose`."""
    name = f"MASTER_{'ADDR' if key == 'address' else 'PORT'}"
    return f"leave {name} out of the environment" if user.get(name) else f"write `master: {{{key}: auto}}` in cluster.yaml"


def _must_be_node_0(plan: Plan, fleet: Fleet, address: str, alternative: str) -> None:
    """A master address that is not node 0's would make every process wait for ever."""
    told = fleet.ask_all("probe_locate", "node 0 does not answer", {0: {"address": address}})[0]
    if told["own"]:
        return
    why = told.get("error") or f"it is {', '.join(told.get('resolved', []))} there"
    raise NodeUnusable(
        f"MASTER_ADDR {address} is not an address of node 0 ({why})",
        where=plan.nodes[0].host.name,
        next_step=f"{alternative}, or put the host that has it first (--hosts)",
    )


def _candidates(plan: Plan, facts: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Addresses of the first node, the likeliest at first: what the inventory says, where ssh reached it, other interfaces."""
    if plan.backend == "local":
        return ["127.0.0.1"]
    first = facts[min(facts)]
    internal = plan.nodes[min(facts)].host.internal_address
    if internal:
        return [internal]
    own = [(name, text) for name, text in first["addresses"]]
    reached = [text for text in first["reached_at"] if text in {address for _, address in own}]
    apart = [told for told in facts.values() if not _one_machine(told, first)]
    taken = {text for told in apart for _, text in told["addresses"]}
    own = [(name, text) for name, text in own if text not in taken and _wanted(plan, name, text)]
    own.sort(key=lambda pair: (pair[1] not in reached, pair[0].startswith(_VIRTUAL), ":" in pair[1]))
    alone = [] if apart or plan.master.network or plan.master.interface else ["127.0.0.1"]
    return [*(text for _, text in own), *alone]


def _one_machine(told: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two hosts of the inventory are one machine: containers have its boot id, too, but addresses of their own."""
    return bool(told["boot_id"] == other["boot_id"] and told["addresses"] == other["addresses"])


def _wanted(plan: Plan, interface: str, address: str) -> bool:
    if plan.master.interface and interface != plan.master.interface:
        return False
    network = plan.master.network
    return network is None or ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)


def _nobody_reaches(
    plan: Plan, first: int, results: Mapping[int, Mapping[str, Any]], candidates: list[str], port: int
) -> LauncherError:
    name = plan.nodes[first].host.name
    if not candidates:
        return NodeUnusable(
            f"node {first} has no address that fits `master:` in cluster.yaml",
            where=name,
            next_step="loosen master.network or master.interface, or give the host an internal_address",
        )
    errors: list[NodeError] = []
    for rank, tried in sorted(results.items()):
        bad = [f"{address} port {port}: {told['error']}" for address, told in tried.items() if "error" in told]
        if bad:
            errors.append(NodeUnusable(f"cannot reach node {first} ({name})", where=plan.nodes[rank].host.name, lines=bad))
    what = f"no address of node {first} ({name}) is reached by every other node"
    error = NodesFailed(what, errors)
    error.next_step = (
        "open the training ports between the nodes, or name the right network by `master: {network: ...}` in cluster.yaml"
    )
    return error
