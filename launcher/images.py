"""The environments that jobs can run in, as PAI's SDK asks for them: they are those under `images:` of the cluster file.

    from launcher.images import retrieve

    image_uri = retrieve("pytorch", framework_version="latest", accelerator_type="GPU").image_uri

Answers come from the cluster file that a job of the session would use.  One without any `images:` leaves commands to the
nodes' own Python: that is what is given then, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from launcher import arguments
from launcher.arguments import Check
from launcher.environments import NODES_OWN
from launcher.errors import UsageError
from launcher.model import ImageInfo
from launcher.session import get_default_session, odd_session

if TYPE_CHECKING:
    from launcher.cluster import Cluster
    from launcher.session import Session

__all__ = ["ImageInfo", "ImageScope", "list_images", "retrieve"]

LATEST = "latest"


class ImageScope:
    """What an image is for, in PAI's words: `retrieve` and `list_images` take these, or their texts."""

    TRAINING = "training"
    INFERENCE = "inference"
    DEVELOP = "develop"


_CHECKS: dict[str, Check] = {
    "framework_name": arguments.text,
    "framework_version": arguments.text,
    "accelerator_type": lambda value: arguments.one_of(value, ("CPU", "GPU")),
    "image_scope": lambda value: arguments.one_of(value, (ImageScope.TRAINING, ImageScope.INFERENCE, ImageScope.DEVELOP)),
    "session": odd_session,
}
"""what may be asked for"""


def retrieve(
    framework_name: str,
    framework_version: str,
    accelerator_type: str | None = "CPU",
    image_scope: str | None = ImageScope.TRAINING,
    session: Session | None = None,
) -> ImageInfo:
    """The image of that framework, version, accelerator and scope.

    Args:
        framework_name: such as `pytorch`; upper and lower case are the same.
        framework_version: such as `2.4.1`, or `2.4` for the newest one that begins so, or `latest`.
        accelerator_type: `CPU` or `GPU`; None: `CPU`.
        image_scope: `training`, `inference` or `develop`; None: `training`.
        session: whose cluster file answers; unset: the default session's.

    Raises:
        WrongArguments: these cannot be asked for; every problem at once.
        UsageError: the cluster file has images, but not this one; it lists those there are.

    Of an image only what the file says of it is compared.  Where it has no images at all, the nodes' own Python is what
    is given, and a warning says so once.
    """
    asked = {"framework_name": framework_name, "framework_version": framework_version}
    missing = [f"{name}: a text is wanted, not None" for name, value in asked.items() if value is None]
    _complain({**asked, "accelerator_type": accelerator_type, "image_scope": image_scope, "session": session}, missing)
    accelerator_type = accelerator_type or "CPU"
    image_scope = image_scope or ImageScope.TRAINING
    cluster = _cluster(session)
    images = list(cluster.images)
    if not images:
        why = f"{cluster.path} has no `images:`" if cluster.path else "there is no cluster file, and so no `images:`"
        arguments.warn_once(f"{why}; commands run with the nodes' own Python")
        return ImageInfo("nodes' own", NODES_OWN, framework_name, None, accelerator_type.upper(), None, image_scope)
    fits = [image for image in images if _says(image.framework_name, framework_name) and _says(image.image_scope, image_scope)]
    fits = [image for image in fits if _says(image.accelerator_type, accelerator_type)]
    found = _of_version(fits, framework_version)
    if found is None:
        wanted = f"{framework_name} {framework_version}, {accelerator_type}, {image_scope}"
        step = "ask for one of these, or list it under `images:` of the cluster file"
        raise UsageError(f"there is no image for {wanted}", where=str(cluster.path), problems=_described(images), next_step=step)
    return found


def list_images(
    framework_name: str | None = None, accelerator_type: str | None = None, image_scope: str | None = None,
    session: Session | None = None,
) -> list[ImageInfo]:  # fmt: skip
    """The images of the cluster file that a job would use, in its order; all of them, or those that fit what is asked for."""
    asked = {"framework_name": framework_name, "accelerator_type": accelerator_type, "image_scope": image_scope}
    _complain({**asked, "session": session})
    said = {key: word for key, word in asked.items() if word is not None}
    return [image for image in _cluster(session).images if all(_says(getattr(image, key), word) for key, word in said.items())]


def _complain(asked: Mapping[str, Any], missing: Iterable[str] = ()) -> None:
    arguments.complain("no image can be looked for", _CHECKS, asked, missing, manual="launcher.images.retrieve")


def _cluster(session: Session | None) -> Cluster:
    from launcher.planning.images import inventory_with_images

    return inventory_with_images((session or get_default_session()).request)


def _says(said: str | None, asked: str) -> bool:
    """What the file does not say fits everything."""
    return said is None or said.lower() == asked.lower()


def _of_version(images: Iterable[ImageInfo], asked: str) -> ImageInfo | None:
    """The one of that very version, else the newest that begins with it; of equal ones the first in the file."""
    newest_first = sorted(images, key=lambda image: _order(image.framework_version or ""), reverse=True)
    if asked.lower() == LATEST:
        return newest_first[0] if newest_first else None
    exact = [image for image in newest_first if image.framework_version in (asked, None)]
    said = [image for image in exact if image.framework_version is not None]
    longer = [image for image in newest_first if (image.framework_version or "").startswith(asked + ".")]
    return next(iter([*said, *longer, *exact]), None)


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which 1.9 < 1.10 < 1.10.1, and 2.0rc1 < 2.0."""
    parts = re.findall(r"\d+|[A-Za-z]+", version)
    # A word is before the end, the end before a number.
    return (*((2, int(part), "") if part.isdigit() else (0, 0, part) for part in parts), (1, 0, ""))


def _described(images: list[ImageInfo]) -> list[str]:
    from launcher.planning.images import described

    return described(tuple(images))
