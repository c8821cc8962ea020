"""`launcher tensorboard`: TensorBoard on what a job has written for it."""

from __future__ import annotations

import click

from launcher import api


@click.command("tensorboard")
@click.argument("job")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port of this machine; unset: a free one.")
def tensorboard_command(job: str, port: int) -> None:
    """Show a job's TensorBoard logs in a browser, until Ctrl-C; also while the job runs."""
    from launcher import tensorboard

    folder = api.find(job)
    place = api.tensorboard_place(folder)
    click.echo(f"TensorBoard on {place}; Ctrl-C ends it", err=True)
    shown = tensorboard.start(place, port)
    try:
        click.echo(shown.app_uri)
        shown.wait()
    except KeyboardInterrupt:
        pass
    finally:
        shown.stop()
