"""Which environment the command runs in, and what the inventory knows of images."""

from __future__ import annotations

import dataclasses
import os

from launcher import environments
from launcher.cluster import Cluster
from launcher.cluster.inventory import did_you_mean
from launcher.errors import UsageError
from launcher.model import Host, ImageInfo
from launcher.planning.personal import Personal
from launcher.planning.places import find_cluster
from launcher.planning.request import Request, Settings


def image_of(settings: Settings, cluster: Cluster) -> str | None:
    """The URI of the job's image, None for the nodes' own Python; UsageError where there is none of that name."""
    said = settings.get("image")
    if said is None:
        return None
    where = settings.origins["image"]
    uri = _uri(str(said), cluster, where)
    try:
        environment = environments.parse(uri)
    except ValueError as error:
        raise UsageError(f"{uri}: {error}", where=where) from None
    if environment is None:
        return None
    if environment.kind == "pyxis" and cluster.backend != "slurm":
        step = "name it as docker://, podman:// or apptainer://"
        what = f"{uri}: only Slurm starts containers by pyxis, and this is a job of backend {cluster.backend}"
        raise UsageError(what, where=where, next_step=step)
    return uri


def inside(image: str | None, cluster: Cluster) -> Cluster:
    """The inventory as it holds in an image of pyxis', where our own program runs, too: no path to a Python of the nodes does.

    UsageError where our directory would not be the same inside and outside.
    """
    environment = environments.parse(image) if image else None
    if environment is None or environment.kind != "pyxis":
        return cluster
    for workdir in {cluster.slurm.workdir or cluster.template.workdir, *(host.workdir for host in cluster.hosts)}:
        if workdir.startswith("~") and workdir != Host.workdir:
            step = "write it as an absolute path: `workdir:` under `slurm:` in cluster.yaml"
            raise UsageError(f"{workdir}: in a container of pyxis' ~ is another directory", where=image or "", next_step=step)
    hosts = tuple(dataclasses.replace(host, python=None, venv=None) for host in cluster.hosts)
    return dataclasses.replace(cluster, hosts=hosts, template=dataclasses.replace(cluster.template, python=None, venv=None))


def _uri(said: str, cluster: Cluster, where: str) -> str:
    """What a name of the inventory stands for; a URI is one."""
    if environments.is_uri(said):
        return said
    known = {image.image_name: image.image_uri for image in cluster.images}
    if said in known:
        return known[said]
    what = f"no image is called {said!r}{did_you_mean(said, known)}"
    uris = f"docker://{said.rpartition('://')[2]} (there are {environments.FORMS})"
    step = f"use one of these, or a URI, such as {uris}"
    if not known:
        step = f"name it by a URI, such as {uris}; or list it under `images:` there"
        what += f", for {cluster.path or 'the inventory'} has no `images:`"
    raise UsageError(what, where=where, problems=described(cluster.images), next_step=step)


def described(images: tuple[ImageInfo, ...]) -> list[str]:
    """A line for each image, to choose from."""
    return [f"{image.image_name}: {', '.join(_words(image))}" for image in images]


def _words(image: ImageInfo) -> list[str]:
    framework = " ".join(word for word in (image.framework_name, image.framework_version) if word)
    python = image.python_version and f"Python {image.python_version}"
    return [word for word in (framework, image.accelerator_type, python, image.image_scope, image.image_uri) if word]


def inventory_with_images(request: Request) -> Cluster:
    """The inventory that a job of this request would use, its nodes left aside; raises UsageError."""
    return find_cluster(Settings(request, None, Personal(os.environ)))
