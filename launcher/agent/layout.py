"""Where things lie on a node.  Nothing here is read by the near side except through an agent.

    <workdir>/node/agents/<hash>.pyz and <hash>.<python>
    <workdir>/node/mirrors/<project>/tree/  manifest.json  lock
    <workdir>/node/layers/<key>/                                              see layer.py; asked/ is there while it runs
    <workdir>/node/inputs/<digest>/tree/  manifest.json  lock
    <workdir>/node/layers/<key>/                                              see layer.py; asked/ is there while it runs
    <workdir>/node/jobs/<job id>/code/ output/<channel>/ input/config/ input/data/<channel>   one per file system
    <workdir>/node/jobs/<job id>/rank-<r>/spool/                              one per node; spool-<n>/ after requeue n

Runs on the nodes: standard library only, Python 3.8.
"""

import os

_JOINTS = str.maketrans("", "", "._-")
"""what a plain name may have beside letters and digits, not at its beginning"""
CHANNELS = ("model", "checkpoints", "tensorboard")
"""directories below a job's output/"""
HYPERPARAMETERS = "hyperparameters.json"


def part_of(path):
    """Beside ``path``, the name under which it is written until it is whole.

    Nobody else's: nodes that share a home may be at it, too, and in containers processes have the same few numbers.
    """
    return "%s.%s.part" % (path, os.urandom(8).hex())


class Layout:
    """The paths below one workdir (str, `~` allowed).  A name that could lead out of it raises ValueError."""

    def __init__(self, workdir):
        self.root = os.path.join(os.path.abspath(os.path.expanduser(workdir)), "node")

    def agent(self, digest):
        return os.path.join(self.root, "agents", _checked(digest) + ".pyz")

    def mirror(self, project):
        """The directory of one project's mirror; the files are in its tree/."""
        return os.path.join(self.root, "mirrors", _checked(project))

    def input(self, digest):
        """The place of one content in the store of inputs; the files are in its tree/."""
        return os.path.join(self.root, "inputs", _checked(digest))

    def jobs(self):
        return os.path.join(self.root, "jobs")

    def job(self, job_id):
        return os.path.join(self.jobs(), _checked(job_id))

    def code(self, job_id):
        """The working copy: the command's working directory."""
        return os.path.join(self.job(job_id), "code")

    def output(self, job_id):
        return os.path.join(self.job(job_id), "output")

    def config(self, job_id):
        return os.path.join(self.job(job_id), "input", "config")

    def input_data(self, job_id, channel):
        """Where a job finds an input channel."""
        return os.path.join(self.job(job_id), "input", "data", _checked(channel))

    def make_outputs(self, job_id, channels=()):
        """The directories that a job finds beside its working copy; ``channels`` of its own besides the usual ones."""
        outputs = [os.path.join(self.output(job_id), _checked(channel)) for channel in (*CHANNELS, *channels)]
        for directory in [*outputs, self.config(job_id)]:
            os.makedirs(directory, exist_ok=True)
        # As with PAI it is there, too, where there are no hyperparameters; of those that there are it is written later.
        try:
            file = os.open(os.path.join(self.config(job_id), HYPERPARAMETERS), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        with os.fdopen(file, "w") as empty:
            empty.write("{}\n")

    def rank(self, job_id, rank):
        return os.path.join(self.job(job_id), "rank-%d" % rank)

    def spool(self, job_id, rank, requeue=0):
        return os.path.join(self.rank(job_id, rank), "spool-%d" % requeue if requeue else "spool")


def _checked(name):
    plain = name.isascii() and name[:1].isalnum() and name.translate(_JOINTS).isalnum()
    if not plain:
        raise ValueError("not a plain name: %r" % name)
    return name
