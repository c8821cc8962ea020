"""Hosts on the command line: what --hosts means, and what --hosts and --exclude pick from an inventory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cluster import Cluster, load_cluster, local_cluster, parse_hosts, select_hosts
from launcher.errors import UsageError


@pytest.mark.parametrize(
    ("text", "name", "address", "user", "port"),
    [
        ("node1", "node1", "node1", None, None),
        ("10.0.0.2", "10.0.0.2", "10.0.0.2", None, None),
        ("train@node1:2222", "node1:2222", "node1", "train", 2222),
        (r"CORP\me@node1", "node1", "node1", r"CORP\me", None),
        ("fd00::2", "fd00::2", "fd00::2", None, None),
        ("[fd00::2]", "[fd00::2]", "fd00::2", None, None),
        ("u@[fd00::2]:22", "[fd00::2]:22", "fd00::2", "u", 22),
        ("::1", "::1", "::1", None, None),
        ("gpu_a-1.example.org", "gpu_a-1.example.org", "gpu_a-1.example.org", None, None),
    ],
)
def test_a_host_text_is_taken_apart(text: str, name: str, address: str, user: str | None, port: int | None) -> None:
    """The name is the text without `user@`, port included; the address has neither, nor brackets."""
    (host,) = parse_hosts(text)
    assert (host.name, host.address, host.user, host.port) == (name, address, user, port)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fe80::1%eth0", "scope"),
        ("[fe80::1%eth0]:22", "scope"),
        ("fe80::1", "link-local"),
        ("fd00::zz", "no IPv6 address"),
        ("1:2:3", "no IPv6 address"),
        ("[fd00::2]22", "only :port may follow"),
        ("node1:", "'' is no port"),
        ("node1:0", "no port"),
        ("node1:65536", "no port"),
        ("node1:ssh", "no port"),
        ("node1:２２", "no port"),
        ("@node1", "no user name stands before"),
        ("a b@node1", "no user name"),
        ("-oProxyCommand=x", "no host"),
        ("-l@node1", "no user name"),
        ("node1;reboot", "no host"),
        ("10.0.0.256", "no IPv4 address"),
        ("10.0", "no IPv4 address"),
        ("u@", "the host is empty"),
        ("", "names no host"),
        (" , ", "names no host"),
        ("a,a", "the same name twice"),
        ("fd00::2,[fd00:0::2]", "the same address, port and user as fd00::2"),
        ("Node1,node1", "the same address, port and user as Node1"),
    ],
)
def test_what_is_no_host_is_refused(text: str, reason: str) -> None:
    """What ssh would take for an option, a shell for a command, or torchrun for nothing, never gets that far."""
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert reason in "\n".join(caught.value.problems)
    assert all(problem.startswith("--hosts: ") for problem in caught.value.problems)


def test_all_that_is_wrong_in_a_list_is_said_at_once() -> None:
    """A person corrects the list once."""
    with pytest.raises(UsageError) as caught:
        parse_hosts("n[2-1],ok,b:0", option="--hostlist")
    assert [problem.split(": ")[:2] for problem in caught.value.problems] == [["--hostlist", "n[2-1]"], ["--hostlist", "b:0"]]


def test_one_address_behind_two_ports_is_two_hosts() -> None:
    """Two machines behind one forwarding address stay apart."""
    assert [host.port for host in parse_hosts("gate:2201,gate:2202")] == [2201, 2202]


@pytest.fixture
def inventory(tmp_path: Path) -> Cluster:
    file = tmp_path / "cluster.yaml"
    file.write_text("hosts: ['node[01-04]', gate:2201, '[fd00::3]:22', {name: big, address: 10.0.0.9, gpus: 8}]\n")
    return load_cluster(file)


def test_hosts_picks_by_name_in_the_order_given(inventory: Cluster) -> None:
    """The first name given is node 0; everything the inventory says of a host comes with it."""
    picked = select_hosts(inventory, "big,node[03-04],gate:2201,[fd00::3]:22").hosts
    assert [host.name for host in picked] == ["big", "node03", "node04", "gate:2201", "[fd00::3]:22"]
    assert (picked[0].address, picked[0].gpus) == ("10.0.0.9", 8)


def test_exclude_takes_hosts_away(inventory: Cluster) -> None:
    """--exclude works on the whole inventory, and on what --hosts picked."""
    assert [host.name for host in select_hosts(inventory, None, "node[02-04],big").hosts] == [
        "node01",
        "gate:2201",
        "[fd00::3]:22",
    ]
    assert [host.name for host in select_hosts(inventory, "node[01-02]", "node01,big").hosts] == ["node02"]
    assert select_hosts(inventory) == inventory


@pytest.mark.parametrize(
    ("hosts", "exclude", "reasons"),
    [
        ("node1", None, ["--hosts: node1: no host of that name", "did you mean node01?"]),
        ("node[01-02],nod03", "bigg", ["--hosts: nod03", "--exclude: bigg", "did you mean big?"]),
        ("node01,node01", None, ["--hosts: node01: named twice"]),
        ("node[02-01]", None, ["does not count upwards"]),
        ("node01", "node01", ["no host is left"]),
        (None, "node[01-04],gate:2201,[fd00::3]:22,big", ["no host is left"]),
        ("", None, ["names no host"]),
        (None, ",", ["--exclude: ',' names no host"]),
    ],
)
def test_names_that_pick_nothing_are_errors(
    inventory: Cluster, hosts: str | None, exclude: str | None, reasons: list[str]
) -> None:
    """A name the inventory does not have is an error with a suggestion, also in --exclude; so is an empty choice."""
    with pytest.raises(UsageError) as caught:
        select_hosts(inventory, hosts, exclude)
    said = str(caught.value)
    assert all(reason in said for reason in reasons), said
    assert f"the inventory {inventory.name}" in said and caught.value.next_step


def test_without_an_inventory_hosts_is_the_inventory() -> None:
    """--hosts alone needs no file; its hosts are reached by ssh, and --exclude applies to them."""
    cluster = select_hosts(local_cluster(), "n[1-3]", "n2")
    assert (cluster.backend, [host.name for host in cluster.hosts]) == ("ssh", ["n1", "n3"])
    with pytest.raises(UsageError, match="no hosts"):
        select_hosts(local_cluster(), None, "n2")


def test_neither_pydantic_nor_yaml_is_loaded_without_a_file() -> None:
    """The package, --hosts and the built-in cluster start without the libraries that only files need."""
    program = (
        "import sys; from launcher.cluster import *; select_hosts(local_cluster(), 'n[1-2]'); parse_duration('1h');"
        "print([name for name in ('pydantic', 'yaml', 'paramiko', 'rich') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
