"""A cluster.yaml that is right: what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cluster import Cluster, load_cluster
from launcher.model import Host, MasterOptions, SlurmOptions, SshOptions


def loaded(tmp_path: Path, text: str | bytes, files: tuple[str, ...] = ()) -> Cluster:
    """The cluster of a text in ``tmp_path``, with the files there that it names."""
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    path = tmp_path / "cluster.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_cluster(path)


FULL = """\
name: lab
backend: ssh
defaults: {user: train, port: 2222, identity_file: keys/id, python: python3.11, workdir: /w, gpus: 2, env: {A: x, B: 3, C: "no"}}
hosts:
  - node1
  - root@node2:22
  - {name: node3, address: 203.0.113.2, internal_address: 10.0.0.2, user: me, port: 23, identity_file: ~/%h, gpus: auto,
     slots: 3, instance_type: a100-8x, venv: /opt/t, workdir: ~/w, env: {B: 007x, D: ""}}
ssh: {config: ssh.cfg, transport: auto, connect_timeout: 1m}
master: {address: 10.0.0.1, port: 29400, interface: ib0, network: 10.0.0.0/16}
"""


def test_every_default_is_applied_and_the_host_wins(tmp_path: Path) -> None:
    """A host's value replaces the default, env is merged, and one interpreter displaces the other."""
    common = {"identity_file": str(tmp_path / "keys/id"), "python": "python3.11", "workdir": "/w", "gpus": 2}
    env = {"A": "x", "B": "3", "C": "no"}
    cluster = loaded(tmp_path, FULL, ("keys/id", "ssh.cfg"))
    assert cluster.hosts == (
        Host("node1", "node1", user="train", port=2222, env=env, **common),  # type: ignore[arg-type]
        Host("node2:22", "node2", user="root", port=22, env=env, **common),  # type: ignore[arg-type]
        Host(
            name="node3",
            address="203.0.113.2",
            internal_address="10.0.0.2",
            user="me",
            port=23,
            identity_file="~/%h",
            gpus=None,
            slots=3,
            instance_type="a100-8x",
            venv="/opt/t",
            workdir="~/w",
            env={"A": "x", "B": "007x", "C": "no", "D": ""},
        ),
    )
    assert cluster.ssh == SshOptions(config=str(tmp_path / "ssh.cfg"), connect_timeout=60.0)
    assert cluster.master == MasterOptions("10.0.0.1", 29400, "ib0", "10.0.0.0/16")
    assert (cluster.name, cluster.backend, cluster.path) == ("lab", "ssh", tmp_path / "cluster.yaml")


def test_a_file_that_only_ssh_can_judge_is_left_to_it(tmp_path: Path) -> None:
    """`none` is no file, % and ${} are ssh's to expand, and a public half stands for a key that the agent holds."""
    cluster = loaded(
        tmp_path,
        "ssh: {config: none}\ndefaults: {identity_file: none}\n"
        'hosts: [a, {name: b, identity_file: "keys/%h"}, {name: c, identity_file: "${HOME}/no"}, {name: d, identity_file: in}]\n',
        ("in.pub",),
    )
    assert cluster.ssh.config == "none"
    assert [host.identity_file for host in cluster.hosts] == ["none", f"{tmp_path}/keys/%h", "${HOME}/no", f"{tmp_path}/in"]


def test_a_host_alone_is_enough(tmp_path: Path) -> None:
    """Nothing but the name is needed; what is not said is None, so that ssh and the node decide."""
    cluster = loaded(tmp_path, "hosts: [node1]")
    assert cluster.hosts == (Host("node1", "node1"),)
    assert (cluster.name, cluster.ssh, cluster.master) == ("cluster", SshOptions(), MasterOptions())


def test_auto_of_a_host_displaces_a_number_of_the_defaults(tmp_path: Path) -> None:
    """`gpus: auto` on a host means: count them there, whatever the defaults say."""
    cluster = loaded(tmp_path, "defaults: {gpus: 2}\nhosts: [a, {name: b, gpus: auto}, {name: c, gpus: 0}]")
    assert [host.gpus for host in cluster.hosts] == [2, None, 0]


def test_ranges_stand_in_mappings_too_and_pair_with_addresses(tmp_path: Path) -> None:
    """A name that is a range gives several hosts; ranges in the addresses pair with it one to one."""
    cluster = loaded(
        tmp_path,
        'hosts: [{name: "a[1-2]", gpus: 4}, {name: "b[08-10]", address: "10.0.0.[8-10]", internal_address: "fd00::[8-10]"}]',
    )
    assert [(host.name, host.address, host.internal_address, host.gpus) for host in cluster.hosts] == [
        ("a1", "a1", None, 4),
        ("a2", "a2", None, 4),
        ("b08", "10.0.0.8", "fd00::8", None),
        ("b09", "10.0.0.9", "fd00::9", None),
        ("b10", "10.0.0.10", "fd00::10", None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "name: lab\r\nhosts:\r\n  - node1\r\n",
        "\ufeffname: lab\nhosts: [node1]\n",
        "%YAML 1.1\n---\nname: lab\nhosts: [node1]\n...\n",
        "name: lab\t# a tab before a comment\nhosts:\n- node1\n",
        "{name: lab, hosts: [node1], defaults: , ssh: , master: ~}",
        "name: &n lab\nhosts: [&h node1]\n",
        "name: !!str lab\nhosts: [!!str node1]\n",
        "defaults: {env: }\nname: lab\nhosts: [{name: node1, env: }]\n",
    ],
)
def test_what_yaml_allows_is_understood(tmp_path: Path, text: str) -> None:
    """Windows line ends, a byte order mark, directives, anchors and sections without a key in them change nothing."""
    cluster = loaded(tmp_path, text)
    assert (cluster.name, cluster.hosts) == ("lab", (Host("node1", "node1"),))


def test_anchors_aliases_and_merge_keys_work(tmp_path: Path) -> None:
    """A merged key gives way to an explicit one, and of several merged mappings the first wins."""
    text = """\
hosts:
  - &big {name: a, gpus: 8, instance_type: big, env: &env {X: "1"}}
  - {<<: *big, name: b, env: {<<: *env, Y: "2"}}
  - {<<: [{gpus: 1}, *big], name: c}
"""
    found = [(host.name, host.gpus, host.instance_type, host.env) for host in loaded(tmp_path, text).hosts]
    assert found == [("a", 8, "big", {"X": "1"}), ("b", 8, "big", {"X": "1", "Y": "2"}), ("c", 1, "big", {"X": "1"})]


def test_a_local_cluster_may_name_its_simulated_nodes(tmp_path: Path) -> None:
    """Without hosts any number is simulated from the template; with hosts they may differ, as real ones do."""
    cluster = loaded(tmp_path, "backend: local\ndefaults: {env: {A: x}, gpus: 2}\nhosts: [a, {name: b, gpus: 1}]")
    assert [(host.name, host.gpus, host.env) for host in cluster.hosts] == [("a", 2, {"A": "x"}), ("b", 1, {"A": "x"})]
    bare = loaded(tmp_path, "backend: local\ndefaults: {env: {A: x}}")
    assert (bare.hosts, bare.template) == ((), Host("local", "localhost", env={"A": "x"}))


def test_a_file_that_multiplies_itself_costs_what_its_text_costs(tmp_path: Path) -> None:
    """Ten levels of ten aliases each are not ten thousand million values."""
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 11))
    text = f"hosts: [node1]\na0: &a0 [x]\n{levels}defaults: {{env: {{A: *a10}}}}\n"
    with pytest.raises(Exception, match=r"defaults\.env\.A: a list: a text is wanted") as caught:
        loaded(tmp_path, text)
    assert len(str(caught.value)) < 5000


def test_a_shared_address_with_different_ports_is_two_hosts(tmp_path: Path) -> None:
    """Machines behind one forwarding address differ by port."""
    cluster = loaded(tmp_path, "hosts: ['gate:2201', 'gate:2202', {name: c, address: gate, port: 2203}]")
    assert [host.port for host in cluster.hosts] == [2201, 2202, 2203]


def test_what_sbatch_is_asked_for_is_kept_as_it_is_written(tmp_path: Path) -> None:
    """Time limits need no quotes, numbers keep their text, and option names have dashes; hosts are not needed."""
    text = """\
backend: slurm
slurm: {partition: "a,b", time: 1:30:00, gpus_per_node: 2, mem: 0, exclusive: yes, cpus_per_task: 4,
        sbatch: {mail_type: END, nice: 10, spread-job: true, signal: "B:USR1@120"}}
"""
    cluster = loaded(tmp_path, text)
    extra = {"mail-type": "END", "nice": "10", "spread-job": True, "signal": "B:USR1@120"}
    assert cluster.slurm == SlurmOptions(
        partition="a,b", time="1:30:00", gpus_per_node="2", mem="0", exclusive=True, cpus_per_task=4, sbatch=extra
    )
    assert (cluster.backend, cluster.hosts) == ("slurm", ())
