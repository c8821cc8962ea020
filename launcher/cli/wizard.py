"""The wizard of `launcher config`: asks what it cannot find out, shows what it would write, and writes it after a yes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from launcher import configuration, keep
from launcher.cluster.userfile import LOCAL, UserConfig, config_path, load_user_config
from launcher.configuration import Found, Inventory
from launcher.errors import UsageError
from launcher.record import dataclass

_CHINESE = {
    "Which machines shall your jobs run on?": "任务在哪些机器上运行？",
    "the cluster file {path} ({told})": "集群文件 {path}（{told}）",
    "{backend}": "{backend}",
    "{backend}, 1 host": "{backend}，1 台主机",
    "{backend}, {hosts} hosts": "{backend}，{hosts} 台主机",
    "hosts of your ssh configuration: {hosts}": "ssh 配置中的主机：{hosts}",
    "Slurm's partition {name} ({nodes} nodes, {gpus} GPUs each)": "Slurm 分区 {name}（{nodes} 个节点，每个 {gpus} 块 GPU）",
    "other machines that answer ssh": "其他可用 ssh 登录的机器",
    "this machine only": "仅本机",
    "cannot be used: {told}": "无法使用：{told}",
    "Your choice": "请选择",
    "Hosts (comma list, ranges such as node[01-04])": "主机（以逗号分隔，可用 node[01-04] 这样的范围）",
    "GPUs of each node that a job asks for": "每个节点申请的 GPU 数",
    "How shall the cluster be called": "集群名称",
    "Shall it be meant when a job names no cluster": "任务未指定集群时默认使用它吗",
    "This will be written:": "将写入：",
    "{path} (new)": "{path}（新建）",
    "{path} (replaced)": "{path}（覆盖）",
    "{path} (changed)": "{path}（修改）",
    "cluster {name}: {file}": "集群 {name}：{file}",
    "default: {name}": "默认集群：{name}",
    "Save": "保存",
    "{name} means {file} until now. Replace it": "{name} 目前指向 {file}。要替换吗",
    "{path} is there already. Replace it": "{path} 已存在。要覆盖吗",
    "nothing was written": "未写入任何内容",
    "saved: {path}": "已保存：{path}",
    "next: launcher nodes --cluster {name}": "下一步：launcher nodes --cluster {name}",
}


@dataclass(frozen=True)
class Said:
    """What the options say; None: it is found out, or asked."""

    file: str | None = None
    hosts: str | None = None
    partition: str | None = None
    gpus: str | None = None
    name: str | None = None
    default: bool | None = None
    ssh_config: str | None = None
    yes: bool = False

    @property
    def machines(self) -> bool:
        """Whether it is clear which machines are meant."""
        return bool(self.file or self.hosts or self.partition)


@dataclass(frozen=True)
class Chosen:
    """The machines: a cluster file that is there, or the text of one; neither: this machine."""

    name: str
    path: Path | None = None
    text: str | None = None


def run(said: Said, environment: Mapping[str, str]) -> None:
    """Find, ask, show, ask again, write.  UsageError where nobody can be asked; click.Abort leaves everything as it was."""
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if not terminal and not said.yes and not said.machines:
        step = "say --from FILE, --hosts a,b or --partition NAME; or --yes, which takes what is found"
        raise UsageError("`launcher config` asks questions, and there is no terminal", next_step=step)
    _Wizard(said, environment, asks=terminal and not said.yes).run()


class _Wizard:
    def __init__(self, said: Said, environment: Mapping[str, str], asks: bool) -> None:
        path = config_path(environment)
        if path is None:
            raise UsageError("LAUNCHER_CONFIG says that there is no config", next_step="unset it, or let it name a file")
        self._said = said
        self._environment = environment
        self._asks = asks
        self._path = path
        self._config = load_user_config(environment) if path.is_file() else UserConfig(str(path))
        self._chinese = _speaks_chinese(environment)

    def run(self) -> None:
        """All of it."""
        chosen = self._of_options() if self._said.machines else self._choose()
        if chosen.path is not None or chosen.text is not None:
            chosen = self._named(chosen)
        default = self._default(chosen.name)
        file = chosen.path if chosen.text is None else self._path.parent / "clusters" / f"{chosen.name}.yaml"
        if not self._agreed(chosen, file, default):
            click.echo(self._say("nothing was written"), err=True)
            return
        if chosen.text is not None and file is not None:
            configuration.write(file, chosen.text)
        changes: list[tuple[tuple[str, ...], str]] = []
        if file is not None:
            changes.append((("clusters", chosen.name), configuration.as_yaml(("clusters", chosen.name), str(file))))
        if default:
            changes.append((("default",), configuration.as_yaml(("default",), chosen.name)))
        saved = configuration.save(changes, self._environment)
        click.echo(self._say("saved: {path}", path=str(saved)))
        click.echo(self._say("next: launcher nodes --cluster {name}", name=chosen.name), err=True)

    def _say(self, sentence: str, **words: object) -> str:
        return (_CHINESE[sentence] if self._chinese else sentence).format(**words)

    def _of_options(self) -> Chosen:
        said = self._said
        if said.file:
            found = configuration.inventory(keep.at_home(said.file, "--from"))
            if not found.right:
                from launcher.cluster import load_cluster

                load_cluster(found.path)
            return Chosen(said.name or _as_name(found.name), found.path)
        if said.partition:
            return Chosen(said.name or "slurm", None, configuration.slurm_text(said.name or "slurm", said.partition, said.gpus))
        return self._of_hosts(said.hosts or "")

    def _of_hosts(self, text: str) -> Chosen:
        from launcher.cluster import parse_hosts
        from launcher.cluster.ranges import split_list

        parse_hosts(text)
        name = self._said.name or "ssh"
        config = self._said.ssh_config and os.path.abspath(os.path.expanduser(self._said.ssh_config))
        return Chosen(name, None, configuration.cluster_text(name, split_list(text), self._said.gpus, config))

    def _choose(self) -> Chosen:
        """What was found, to pick from; without questions the first that is right."""
        found = configuration.find(self._config, self._said.ssh_config)
        choices = self._choices(found)
        if not self._asks:
            return choices[0][1]
        click.echo(self._say("Which machines shall your jobs run on?"), err=True)
        for number, (sentence, _) in enumerate(choices, 1):
            click.echo(f"  {number}  {sentence}", err=True)
        for one in found.inventories:
            if not one.right:
                click.echo("     " + self._say("cannot be used: {told}", told=one.told), err=True)
        number = click.prompt(self._say("Your choice"), type=click.IntRange(1, len(choices)), default=1, err=True)
        return self._completed(choices[number - 1][1], found)

    def _choices(self, found: Found) -> list[tuple[str, Chosen]]:
        choices = [
            (
                self._say("the cluster file {path} ({told})", path=one.path, told=self._told(one)),
                Chosen(_as_name(one.name), one.path),
            )
            for one in found.inventories
            if one.right
        ]
        for part in found.partitions:
            text = configuration.slurm_text(self._said.name or part.name, part.name, self._said.gpus)
            told = {"name": part.name, "nodes": part.nodes, "gpus": part.gpus}
            sentence = self._say("Slurm's partition {name} ({nodes} nodes, {gpus} GPUs each)", **told)
            choices.append((sentence, Chosen(_as_name(part.name), None, text)))
        machine = (self._say("this machine only"), Chosen(LOCAL))
        if not self._asks:
            return [*choices, machine]
        if found.hosts:
            shown = ", ".join(found.hosts[:8]) + (", …" if len(found.hosts) > 8 else "")
            sentence = self._say("hosts of your ssh configuration: {hosts}", hosts=shown)
            choices.append((sentence, Chosen("ssh", None, ",".join(found.hosts))))
        return [*choices, (self._say("other machines that answer ssh"), Chosen("ssh", None, "")), machine]

    def _told(self, found: Inventory) -> str:
        """Its backend, and how many hosts it names."""
        counts = {0: "{backend}", 1: "{backend}, 1 host"}
        return self._say(counts.get(found.hosts, "{backend}, {hosts} hosts"), backend=found.told, hosts=found.hosts)

    def _completed(self, chosen: Chosen, found: Found) -> Chosen:
        """Asked for what only a person knows: which hosts, how many GPUs of Slurm."""
        if chosen.name == "ssh" and chosen.text is not None:
            while True:
                question = self._say("Hosts (comma list, ranges such as node[01-04])")
                try:
                    return self._of_hosts(click.prompt(question, default=chosen.text or None, err=True))
                except UsageError as error:
                    click.echo(f"error: {error}", err=True)
        part = next((one for one in found.partitions if chosen.text is not None and one.name == chosen.name), None)
        if part is None or not part.gpus or self._said.gpus is not None:
            return chosen
        question = self._say("GPUs of each node that a job asks for")
        gpus = click.prompt(question, type=click.IntRange(0), default=part.gpus, err=True)
        return Chosen(chosen.name, None, configuration.slurm_text(chosen.name, part.name, str(gpus) if gpus else None))

    def _named(self, chosen: Chosen) -> Chosen:
        """The cluster's name, in the text too."""
        from launcher.cluster import parse_name

        name = self._said.name or chosen.name
        while True:
            if self._asks and self._said.name is None:
                name = click.prompt(self._say("How shall the cluster be called"), default=chosen.name, err=True).strip()
            try:
                if parse_name(name) == LOCAL:
                    raise ValueError("another name: `local` always means this machine")
            except ValueError as error:
                if not self._asks or self._said.name is not None:
                    raise UsageError(f"--name {name}: {error}") from error
                click.echo(f"error: {name}: {error}", err=True)
                continue
            key = ("name",)
            text = None if chosen.text is None else configuration.changed(chosen.text, key, configuration.as_yaml(key, name))
            return Chosen(name, chosen.path, text)

    def _default(self, name: str) -> bool:
        """Whether it becomes the default: as said; the first one, and the only choice of a person who picked this machine, do."""
        if self._said.default is not None:
            return self._said.default
        if self._config.default in (None, name) or name == LOCAL:
            return self._config.default != name
        question = self._say("Shall it be meant when a job names no cluster")
        return self._asks and click.confirm(question, default=True, err=True)

    def _agreed(self, chosen: Chosen, file: Path | None, default: bool) -> bool:
        """The summary, and a yes to it and to everything that would be replaced."""
        known = self._config.clusters.get(chosen.name)
        lines = []
        if chosen.text is not None and file is not None:
            lines.append(self._say("{path} (replaced)" if file.exists() else "{path} (new)", path=file))
            lines += [f"    {line}" for line in chosen.text.splitlines() if not line.startswith("#")]
        lines.append(self._say("{path} (changed)" if self._config.exists else "{path} (new)", path=self._path))
        if file is not None:
            lines.append("    " + self._say("cluster {name}: {file}", name=chosen.name, file=file))
        if default:
            lines.append("    " + self._say("default: {name}", name=chosen.name))
        click.echo(self._say("This will be written:"), err=True)
        for line in lines:
            click.echo(f"  {line}", err=True)
        replaced = []
        if file is not None and known is not None and os.path.realpath(known) != os.path.realpath(file):
            replaced.append(self._say("{name} means {file} until now. Replace it", name=chosen.name, file=known))
        if chosen.text is not None and file is not None and file.exists():
            replaced.append(self._say("{path} is there already. Replace it", path=file))
        return all(self._confirmed(question, default=False) for question in replaced) and (
            not self._asks or click.confirm(self._say("Save"), default=True, err=True)
        )

    def _confirmed(self, question: str, default: bool) -> bool:
        if self._said.yes:
            return True
        if not self._asks:
            raise UsageError(question, next_step="say --yes, or another --name")
        return click.confirm(question, default=default, err=True)


def _as_name(text: str) -> str:
    """A cluster's name as a name of the config."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text).strip("-._")[:60] or "cluster"
    return safe if safe != LOCAL else "local-cluster"


def _speaks_chinese(environment: Mapping[str, str]) -> bool:
    """By the locale, as setlocale(3) looks it up."""
    spoken = next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), "")
    return spoken.lower().startswith("zh")
