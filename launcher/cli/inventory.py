"""Commands about machines: nodes, trust."""

from __future__ import annotations

from typing import Any

import click

from launcher import environ, planning
from launcher.cli import options
from launcher.errors import LauncherError, NodeError, UsageError
from launcher.model import Host, to_json
from launcher.screen import print_table


@click.command("nodes")
@options.inventory
@options.output
def nodes_command(output: str, **said: Any) -> None:
    """Show the inventory as it is understood; asks no machine anything."""
    cluster = planning.inventory(planning.Request(**said))
    if output == "json":
        document = {
            "schema_version": 1,
            "name": cluster.name,
            "backend": cluster.backend,
            "path": str(cluster.path) if cluster.path else None,
        }
        hosts = [{**to_json(host), "env": environ.masked(host.env)} for host in cluster.hosts]
        options.print_json({**document, "hosts": hosts, "ssh": to_json(cluster.ssh), "master": to_json(cluster.master)})
        return
    where = f" ({cluster.path})" if cluster.path else ""
    click.echo(f"cluster {cluster.name}, backend {cluster.backend}{where}", err=True)
    if cluster.backend == "local":
        click.echo("any number of nodes is simulated on this machine", err=True)
        return
    if cluster.backend == "slurm" and not cluster.hosts:
        click.echo("Slurm chooses the nodes of a job", err=True)
        return
    rows: list[tuple[str, ...]] = [("HOST", "ADDRESS", "USER", "PORT", "GPUS", "INSTANCE TYPE", "PYTHON", "WORKDIR")]
    for host in cluster.hosts:
        python = f"{host.venv}/bin/python" if host.venv else host.python
        gpus = host.gpus if host.gpus is not None else "auto" if host.slots is None else f"slots={host.slots}"
        cells = (host.name, host.address, host.user, host.port, gpus, host.instance_type, python, host.workdir)
        rows.append(tuple("-" if cell is None else str(cell) for cell in cells))
    print_table(rows)


@click.command("trust")
@click.argument("names", nargs=-1, metavar="[HOST]...")
@options.inventory
@click.option("--yes", is_flag=True, help="Record without asking; only where you have seen the fingerprints elsewhere.")
@click.pass_context
def trust_command(ctx: click.Context, /, names: tuple[str, ...], yes: bool, **said: Any) -> None:
    """Show the fingerprints of machines that are new here, and record their keys after a yes.

    Without HOST all hosts of the inventory are looked at.
    """
    if names and said.get("hosts"):
        raise UsageError("hosts are named twice: as arguments and by --hosts")
    if names:
        said["hosts"] = ",".join(names)
    cluster = planning.inventory(planning.Request(**said))
    failures: list[LauncherError] = []
    for host in cluster.hosts:
        try:
            _trust(host, cluster.ssh, yes)
        except NodeError as error:
            failures.append(error)
            click.echo(f"error: {error}", err=True)
    if not cluster.hosts:
        raise UsageError("there is no host to look at", next_step="name one, or an inventory by --cluster")
    ctx.exit(69 if failures else 0)


def _trust(host: Host, ssh: Any, yes: bool) -> None:
    """One machine at a time: a jump host must be trusted before what lies behind it can be seen."""
    from launcher.transports.known_hosts import record, scan

    new = False
    while True:
        keys = scan(host, ssh)
        if not keys:
            if not new:
                click.echo(f"{host.name}: known already")
            return
        for key in keys:
            click.echo(f"{key.machine}: {key.type} {key.fingerprint}")
        if not yes and not click.confirm("Are these the right ones? Record them", default=False, err=True):
            raise NodeError(
                "not recorded", where=host.name, next_step="compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there"
            )
        path = record(keys)
        if path is None:
            raise NodeError(
                "ssh_config names no known_hosts file to record it in", where=host.name, next_step="set UserKnownHostsFile"
            )
        click.echo(f"{keys[0].machine}: recorded in {path}")
        new = True
