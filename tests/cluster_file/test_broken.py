"""A cluster.yaml that is wrong: every problem, with its place, the value, and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cluster import load_cluster
from launcher.errors import UsageError

HOSTS = "hosts: [node1]\n"


def problems(tmp_path: Path, text: str | bytes) -> list[str]:
    """What is wrong in the text, each problem without the file's path."""
    path = tmp_path / "cluster.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        load_cluster(path)
    assert caught.value.exit_code == 2
    assert all(problem.startswith(f"{path}:") for problem in caught.value.problems)
    return [problem.replace(f"{path}:", "") for problem in caught.value.problems]


ONE_PROBLEM = [
    # what YAML itself refuses
    ("a:\n\t- b\n", "2:1: a tab stands in the indentation"),
    ("hosts:\n  - a\n \t - b\n", "3:2: a tab stands in the indentation"),
    ("hosts: [node[1-2]]", "1:13: the list is not closed, or a name with brackets stands in it without quotes"),
    ("hosts:\n- [::1]:22", "2:4: a value is missing here; an address in brackets needs quotes"),
    ("name: 'lab\n" + HOSTS, "a quote is not closed (it began in line 1)"),
    ("name: lab: x\n", "1:10: a colon where none can stand"),
    ("name: a\n  hosts: [b]\n", "2:8: a colon where none can stand"),
    ("hosts: [*x]", "1:9: no anchor (&name) of this name stands above"),
    ("name: a\x07b\n", "1:8: the character U+0007 cannot stand in YAML"),
    ("name: @lab\n" + HOSTS, "1:7: this character cannot begin a value"),
    (b"name: l\xe4b\n", "1:8: byte 0xe4: the file is not UTF-8"),
    ("name: lab\n".encode("utf-16"), "1:1: byte 0xff: the file is not UTF-8"),
    ("hosts: [a]\n---\nhosts: [b]\n", "2:1: a second document begins here"),
    ("[" * 100000, "nested "),
    ("a: " + "{a: " * 50, "nested deeper than 40 levels"),
    ("", "1:1: the file is empty"),
    ("\ufeff# nothing\n\n", "1:1: the file is empty"),
    ("---\n", "2:1: empty: a mapping of keys is wanted"),
    ("- a\n- b\n", "1:1: a list: a mapping of keys is wanted"),
    ("node1", "1:1: node1: a mapping of keys is wanted"),
    # keys
    ("nam: lab\n" + HOSTS,
     "unknown key; allowed: name, backend, defaults, hosts, ssh, master, slurm, images (did you mean name?)"),
    (HOSTS + "defaults: {identity-file: k}", "2:12: defaults.identity-file: unknown key;"),
    (HOSTS + "defaults: {identity-file: k}", "(did you mean identity_file?)"),
    ("hosts: [{name: a, adress: b}]", "1:19: hosts[0].adress: unknown key;"),
    (HOSTS + "hosts: [node2]\n", "2:1: hosts: the same key twice; first in line 1"),
    ("hosts:\n- name: a\n  gpus: 1\n  gpus: 2\n", "4:3: gpus: the same key twice; first in line 3"),
    (HOSTS + "? [a]\n: b\n", "2:3: a key is a word"),
    (HOSTS + "1: b\n", "2:1: 1: unknown key"),
    (HOSTS + "images: {}", "2:9: images: a mapping: a list is wanted here"),
    (HOSTS + "images: [{name: a}]", "2:10: images[0].uri: missing: this key is needed"),
    (HOSTS + "images: [{name: a, uri: t, framework: x}]", "images[0].framework: unknown key; allowed: name, uri, framework_name"),
    (HOSTS + "images: [{name: a, uri: pytorch}]", "2:25: images[0].uri: pytorch: no image: venv:/path, conda:NAME-OR-PREFIX"),
    (HOSTS + 'images: [{name: a, uri: "docker:t"}]', '2:25: images[0].uri: "docker:t": written as docker://IMAGE'),
    (HOSTS + 'images: [{name: "venv:/a", uri: "venv:/a"}]', "a name of your own; the URI stands under `uri:`"),
    (HOSTS + 'images: [{name: a, uri: "conda:t", accelerator_type: gpu}]', "gpu: allowed: CPU, GPU (did you mean GPU?)"),
    (HOSTS + 'images: [{name: a, uri: "conda:t"}, {name: a, uri: "conda:u"}]',
     "images[1].name: a: the same name twice; first at"),
    (HOSTS + "ssh: {transport: openssh}", "2:18: ssh.transport: openssh: not in this version"),
    (HOSTS + "backend: shh", "2:10: backend: shh: allowed: local, ssh, slurm (did you mean ssh?)"),
    ("hosts: [{address: a}]", "1:9: hosts[0].name: missing: this key is needed"),
    # sections and lists
    ("name: lab", "1:1: hosts: missing: backend ssh needs at least one host"),
    ("hosts: []", "1:8: hosts: empty: backend ssh needs at least one host"),
    ("hosts: {a: b}", "1:8: hosts: a mapping: a list is wanted here"),
    ("hosts: node1", "1:8: hosts: node1: a list is wanted here"),
    (HOSTS + "defaults: [a]", "2:11: defaults: a list: a mapping is wanted here"),
    (HOSTS + "ssh: auto", "2:6: ssh: auto: a mapping is wanted here"),
    (HOSTS + "defaults: {env: [A=1]}", "2:17: defaults.env: a list: a mapping is wanted here"),
    (
        HOSTS + "defaults: !foo {}",
        "2:11: defaults: a mapping: a mapping is wanted here, as in `key: value`; the tag !foo has no meaning here",
    ),
    # types
    ("hosts: [{name: a, gpus: \"4\"}]", '1:25: hosts[0].gpus: "4": auto, or a whole number from 0 on; write 4 without quotes'),
    ("hosts: [{name: a, gpus: -1}]", "1:25: hosts[0].gpus: -1: auto, or a whole number from 0 on"),
    ("hosts: [{name: a, gpus: yes}]", "1:25: hosts[0].gpus: yes: auto, or a whole number"),
    ("hosts: [{name: a, gpus: 1.0}]", "1:25: hosts[0].gpus: 1.0: auto, or a whole number"),
    ("hosts: [{name: a, gpus: }]", "hosts[0].gpus: nothing: no value; give one or remove the key"),
    ("hosts: [{name: a, slots: 0}]", "1:26: hosts[0].slots: 0: a whole number from 1 on"),
    ("hosts: [{name: a, port: 022}]", "1:25: hosts[0].port: 022: a number from 1 to 65535; YAML does not read this as it looks"),
    ("hosts: [{name: a, port: 65536}]", "1:25: hosts[0].port: 65536: a number from 1 to 65535"),
    (
        "hosts: [{name: a, user: 1000}]",
        '1:25: hosts[0].user: 1000: a text is wanted here; YAML reads 1000 as a number, so write "1000"',
    ),
    ("hosts: [{name: a, user: -x}]", "1:25: hosts[0].user: -x: a log-in name"),
    (HOSTS + 'name: ""', '2:7: name: "": empty'),
    (HOSTS + 'name: "a\\nb"', "2:7: name: \"a\\nb\": a text on one line"),
    (
        HOSTS + "name: 2024-01-01",
        "2:7: name: 2024-01-01: a text is wanted here; YAML does not read this as it looks (timestamp), so write it in quotes",
    ),
    (HOSTS + "ssh: {connect_timeout: 0}", "2:24: ssh.connect_timeout: 0: more than no time at all"),
    (HOSTS + "ssh: {connect_timeout: .inf}", "2:24: ssh.connect_timeout: .inf: seconds, or a number with a unit"),
    (HOSTS + "ssh: {connect_timeout: 10 s s}", "2:24: ssh.connect_timeout: 10 s s: seconds, or a number with a unit"),
    (HOSTS + "master: {network: 10.0.0.1/16}", "2:19: master.network: 10.0.0.1/16: auto, or a network"),
    (HOSTS + "master: {network: 10.0.0.1/16}", "(did you mean 10.0.0.0/16?)"),
    (HOSTS + "master: {interface: eth0:1}", "2:21: master.interface: eth0:1: auto, or the name of a network interface"),
    (HOSTS + "master: {address: 'u@h'}", "2:19: master.address: \"u@h\": write the log-in name under `user:`"),
    (HOSTS + "master: {port: 0}", "2:16: master.port: 0: auto, or a number from 1 to 65535"),
    (
        HOSTS + "defaults: {workdir: scratch}",
        "2:21: defaults.workdir: scratch: a path on the node: absolute, or beginning with ~/",
    ),
    (HOSTS + "defaults: {workdir: $HOME/x}", "2:21: defaults.workdir: $HOME/x: a path on the node"),
    (HOSTS + "defaults: {python: bin/python}", "2:20: defaults.python: bin/python: a path on the node"),
    (HOSTS + "defaults: {python: /p, venv: /v}", "2:11: defaults: a mapping: python and venv both name the interpreter"),
    # variables, whose values are never shown
    (
        HOSTS + "defaults: {env: {A: no}}",
        '2:21: defaults.env.A: no: a text is wanted; put quotes around it (an empty one is ""); YAML reads no as false',
    ),
    (HOSTS + "defaults: {env: {PIN: 12.5}}", "2:23: defaults.env.PIN: a number: a text is wanted"),
    (HOSTS + "defaults: {env: {PIN: 012}}", "2:23: defaults.env.PIN: a number: a text is wanted"),
    (HOSTS + "defaults: {env: {A: }}", "defaults.env.A: nothing: a text is wanted"),
    (HOSTS + 'defaults: {env: {A: "x\\0"}}', "2:21: defaults.env.A: a text: a text without the character NUL"),
    (HOSTS + "defaults: {env: {1A: x}}", "2:18: defaults.env.1A: a variable's name"),
    # hosts
    ("hosts: [no]", '1:9: hosts[0]: no: a host is a text'),
    ("hosts: [off]", 'YAML reads off as false, so write "off"'),
    ("hosts: [10.0]", 'YAML reads 10.0 as a number, so write "10.0"'),
    ("hosts:\n- 12:30\n", "2:3: hosts[0]: 12:30: a host is a text"),
    ("hosts:\n-\n", "hosts[0]: nothing: a host is a text"),
    ("hosts:\n- [fd00::1]\n", "2:3: hosts[0]: a list: a host is a text (in quotes"),
    ("hosts: ['']", '1:9: hosts[0]: "": the host is empty'),
    ("hosts: ['a b']", "1:9: hosts[0]: \"a b\": 'a b' is no host"),
    ("hosts: [fe80::1%eth0]", "1:9: hosts[0]: fe80::1%eth0: an address with a scope"),
    ("hosts:\n- node[3-1]", "2:3: hosts[0]: node[3-1]: 3-1 does not count upwards"),
    ("hosts: ['a:0']", "'0' is no port: a number from 1 to 65535"),
    ("hosts: [a, b, a]", "1:15: hosts[2]: a: the same name twice; first at 1:9"),
    ("hosts: ['n[1-3]', n2]", "1:19: hosts[1]: n2: the same name twice; first at 1:9"),
    ("hosts: ['u@a', 'v@a']", "1:16: hosts[1]: a: the same name twice"),
    ("hosts: [a, {name: b, address: a}]", "1:12: hosts[1]: b: the same address, port and user as a; first at 1:9"),
    ("defaults: {port: 22}\nhosts: [a, 'a:22']", "2:12: hosts[1]: a:22: the same address, port and user as a"),
    ("hosts: [{name: 'u@a'}]", "1:16: hosts[0].name: \"u@a\": write the log-in name under `user:`"),
    ("hosts: [{name: 'a:22'}]", "write the address under `address:` and the port under `port:`"),
    ("hosts: [{name: a, address: 'b:22'}]", "write the port under `port:`"),
    ("hosts: [{name: 'a[1-2]', address: b}]", "1:9: hosts[0]: `name` stands for 2 hosts and `address` for 1"),
    ("hosts: [{name: a, gpus: x}, a]", "1:29: hosts[1]: a: the same name twice; first at 1:9"),
    ("hosts: [a, {name: 'a', gpsu: 1}]", "1:12: hosts[1]: a: the same name twice; first at 1:9"),
    ("hosts: [{name: 'a[1-2]', address: b}, a2]", "1:39: hosts[1]: a2: the same name twice; first at 1:9"),
    # files on this machine
    (HOSTS + "ssh: {config: cfg}", "2:15: ssh.config: cfg: the file cannot be read here: No such file or directory"),
    (HOSTS + "ssh: {config: ''}", '2:15: ssh.config: "": empty'),
    (HOSTS + "ssh: {config: .}", "2:15: ssh.config: .: the file cannot be read here: Is a directory"),
    (HOSTS + "ssh: {config: ~nobody-of-this-name/c}", "the file cannot be read here: No such file or directory"),
    (HOSTS + "defaults: {identity_file: /no/k}", "2:27: defaults.identity_file: /no/k: the file cannot be read here: No such"),
    ("hosts: [{name: 'n[1-9]', identity_file: k}]", "1:41: hosts[0].identity_file: k: the file cannot be read here: No such"),
    ("hosts: [{name: a, identity_file: ~/no/k}]", "1:34: hosts[0].identity_file: ~/no/k: the file cannot be read here: No"),
    # anchors
    ("hosts: &h [a, *h]", "1:8: contains itself through an alias"),
    ("hosts: [{name: a, <<: 3}]", "3: after << stands a mapping"),
    # what sbatch would refuse after the job was made, or could not mean here
    (HOSTS + "slurm: {time: soon}", "2:15: slurm.time: soon: as sbatch takes it: minutes,"),
    (HOSTS + "slurm: {time: 1:2}", "2:15: slurm.time: 1:2: as sbatch takes it"),
    (HOSTS + "slurm: {gpus_per_node: 0}", "2:24: slurm.gpus_per_node: 0: a whole number from 1 on, or type:number"),
    (HOSTS + "slurm: {gpus-per-node: 2}", "2:9: slurm.gpus-per-node: unknown key;"),
    (HOSTS + "slurm: {cpus_per_task: 0}", "2:24: slurm.cpus_per_task: 0: a whole number from 1 on"),
    (HOSTS + "slurm: {mem: 1.5G}", "2:14: slurm.mem: 1.5G: MiB of a node"),
    (HOSTS + "slurm: {exclusive: no}", "2:20: slurm.exclusive: no: true, user or mcs"),
    (HOSTS + "slurm: {partition: }", "slurm.partition: nothing: no value"),
    (HOSTS + "slurm: {workdir: scratch}", "2:18: slurm.workdir: scratch: a path on the node"),
    (HOSTS + "slurm: {sbatch: {array: 0-3}}", "2:18: slurm.sbatch.array: this one is not yours to set: a job of ours is one job"),
    (HOSTS + "slurm: {sbatch: {gpus-per-node: 2}}", "this one has a key of its own, one level up: gpus_per_node"),
    (HOSTS + "slurm: {sbatch: {--mail-type: END}}", "2:18: slurm.sbatch.--mail-type: the long name of an option of sbatch"),
    (HOSTS + "slurm: {sbatch: {hold: false}}", "2:24: slurm.sbatch.hold: false: a text on one line, a number, or true"),
    (HOSTS + "slurm: {sbatch: {comment: [a]}}", "2:27: slurm.sbatch.comment: a list: a text on one line"),
    (HOSTS + "slurm: {sbatch: {signal: USR2@90}}", "2:8: slurm: a mapping: sbatch.signal: B:NAME@SECONDS"),
    # a backend that leaves a key without a meaning
    ("backend: local\nssh: {connect_timeout: 3}", "2:1: ssh: means nothing with `backend: local`"),
    ("backend: local\nhosts: ['u@a']", "2:9: hosts[0]: means nothing with `backend: local`"),
    ("backend: local\nhosts: [{name: a, address: b}]", "2:19: hosts[0].address: means nothing with `backend: local`"),
    ("backend: local\ndefaults: {user: b}", "2:12: defaults.user: means nothing with `backend: local`"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), ONE_PROBLEM)
def test_each_kind_of_mistake_is_named_with_place_value_and_remedy(tmp_path: Path, text: str | bytes, said: str) -> None:
    """The sentence a person needs is among the problems, and nobody is told the same thing three times."""
    found = problems(tmp_path, text)
    assert any(said in problem for problem in found), found
    assert len(found) <= 2, found


def test_all_problems_are_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Mistakes of every kind stand together: wrong types, unknown keys, and hosts that clash among those that are right."""
    text = """\
nam: lab
defaults: {usr: a, gpus: "4"}
hosts:
  - a
  - no
  - {name: b, gpus: x}
  - a
  - {name: c, address: a}
images: {}
images: {}
"""
    assert [problem.split(": ", 2)[:2] for problem in problems(tmp_path, text)] == [
        ["1:1", "nam"],
        ["2:12", "defaults.usr"],
        ["2:26", "defaults.gpus"],
        ["5:5", "hosts[1]"],
        ["6:21", "hosts[2].gpus"],
        ["7:5", "hosts[3]"],
        ["8:5", "hosts[4]"],
        ["9:9", "images"],
        ["10:1", "images"],
    ]


def test_every_line_that_a_tab_indents_is_named(tmp_path: Path) -> None:
    """The parser stops at the first; a person wants to mend them all."""
    found = problems(tmp_path, "hosts:\n\t- a\n\t- b\n  - c\n")
    assert [problem.split(": ")[0] for problem in found] == ["2:1", "3:1"]


def test_a_file_full_of_mistakes_is_not_printed_whole(tmp_path: Path) -> None:
    """After two hundred problems the rest is counted."""
    path = tmp_path / "cluster.yaml"
    path.write_text("hosts: [" + "no, " * 1000 + "]")
    with pytest.raises(UsageError) as caught:
        load_cluster(path)
    assert (len(caught.value.problems), caught.value.problems[-1]) == (201, "... and 800 more")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """What was asked for and is missing, or a directory, or endless, never becomes a local run."""
    with pytest.raises(UsageError, match="No such file"):
        load_cluster(tmp_path / "cluster.yml")
    with pytest.raises(UsageError, match="directory"):
        load_cluster(tmp_path)
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        load_cluster("/dev/zero")
    with pytest.raises(UsageError, match="null"):
        load_cluster("a\0b")


def test_a_long_value_is_shown_short(tmp_path: Path) -> None:
    """A message stays a line."""
    (found,) = problems(tmp_path, HOSTS + f"backend: {'x' * 1000}")
    assert "x" * 57 + "..." in found
    assert len(found) < 200
