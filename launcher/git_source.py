"""A source folder that is cloned from a git repository when the job is submitted, with the credentials of whoever submits.

    check(source)             what can be said before anybody is asked; UsageError
    masked(source)            as it may be shown and stored
    clone(source, ...)        the folder in a fresh clone; UsageError with git's last lines

Nothing that a repository's name says is taken for an option or a program: only file, http, https, ssh and git are spoken.
A name and a password in the URL go to git through the environment, not its command line, where everybody could read them,
and to no other server than the URL's: where submodules are is said by the repository, whose hooks are not run either.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from launcher.errors import UsageError
from launcher.model import MASK, GitSource
from launcher.record import dataclass
from launcher.uri import hidden

SCHEMES = ("file", "http", "https", "ssh", "git")
_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):(?![:/]{2})\S")
"""host:path, as scp has it (git-clone(1)); what has a slash before its first colon is a path"""
_REF = re.compile(r"(?!/|.*(?://|\.\.|@\{|\.lock(?:/|\Z)))[^\x00-\x20\x7f~^:?*\[\\-][^\x00-\x20\x7f~^:?*\[\\]*(?<![./])\Z")
"""git-check-ref-format(1)"""
_COMMIT = re.compile(r"[0-9A-Fa-f]{4,64}\Z")
_LINK = "160000"
"""the mode of a submodule's entry (gitdatamodel(7))"""
_NOT_CHEAP = re.compile(r"dumb http transport|does not support (?:shallow|filter|--depth)|unadvertised object|not our ref")
"""what servers say that give whole histories alone"""
_LAST_LINES = 8
_SHORT = 4
"""characters of a name or password that may stand in a word by chance"""
_HELPER = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$LAUNCHER_GIT_NAME" "$LAUNCHER_GIT_PASSWORD"; }; f'
)
"""a credential helper (gitcredentials(7)); git starts it with a shell"""
_LOCAL_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE",
                    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_CONFIG_PARAMETERS")  # fmt: skip
"""what speaks of the repository that somebody stands in (git rev-parse --local-env-vars)"""


def check(source: GitSource, where: str) -> GitSource:
    """The source with a local repository as a file: URL; UsageError, which begins with ``where``, lists what cannot be."""
    problems = []
    why = _odd_repo(source.repo)
    if why is not None:
        problems.append(f"repo: {masked(source).repo}: {why}")
    if source.branch is not None and not _REF.match(source.branch):
        problems.append(f"branch: {source.branch!r} is no name of a branch or tag")
    if source.commit is not None and not _COMMIT.match(source.commit):
        problems.append(f"commit: {source.commit!r} is no commit: 4 to 64 hexadecimal digits (a tag is given as branch)")
    if problems:
        raise UsageError("this cannot be cloned", where=where, problems=problems)
    return dataclasses.replace(source, repo=_url(source.repo))


def is_path(repo: str) -> bool:
    """Whether it names a folder of this machine, not an address."""
    return "://" not in repo and not _SCP.match(repo)


def _odd_repo(repo: str) -> str | None:
    if not repo.strip() or not repo.isprintable() or repo.startswith("-"):
        return "an address, or a folder"
    scheme, sign, _ = repo.partition("://")
    if sign and scheme.lower() not in SCHEMES:
        return f"only {', '.join(SCHEMES)} are spoken"
    if re.match(r"[A-Za-z0-9+.-]+::", repo):
        return "a program that git would start; name the repository itself"
    if sign and scheme.lower() != "file":
        try:
            parts = urlsplit(repo)
        except ValueError as error:
            return str(error)
        if not parts.hostname or parts.hostname.startswith("-"):
            return "there is no host in it"
        if why := _in_the_open(parts):
            return why
    if is_path(repo) and not os.path.isdir(os.path.expanduser(repo)):
        return "there is no such folder here"
    return None


def _in_the_open(parts: SplitResult) -> str | None:
    """What git could only be told on its command line, or ssh on its own, where everybody reads it."""
    web = parts.scheme.lower() in ("http", "https")
    if web and parts.query:
        return "git's command line would show what is behind the ?, and git puts paths behind it: write https://NAME:TOKEN@HOST/…"
    if not web and parts.password is not None:
        return f"{parts.scheme} takes no password from an address, and would show it on its command line: leave it out"
    return None


def _url(repo: str) -> str:
    # A path would be cloned by hard links, of the whole history.
    return "file://" + os.path.abspath(os.path.expanduser(repo)) if is_path(repo) else repo


def masked(source: GitSource) -> GitSource:
    """Without what opens the door: a password, a name of an http URL (often a token), values of a query."""
    scheme, sign, rest = source.repo.partition("://")
    if not sign:
        return source
    place, slash, path = rest.partition("/")
    name, at, host = place.rpartition("@")
    if at:
        name = MASK if scheme.lower().startswith("http") else f"{name.partition(':')[0]}:{MASK}" if ":" in name else name
    path = re.sub(r"=[^&#]*", f"={MASK}", path) if "?" in path else path
    return dataclasses.replace(source, repo=f"{scheme}://{name}{at}{host}{slash}{path}")


def address(source: GitSource) -> str:
    """Whose repository it is, without names, passwords and queries: the same for everybody who may read it."""
    return re.sub(r"://[^/]*@", "://", source.repo).partition("?")[0]


def check_folder(folder: str | None, where: str) -> str | None:
    """The source folder as it stands in the repository; None: its top.  UsageError where it would lead out of it."""
    if folder is None:
        return None
    parts = Path(folder).parts
    if os.path.isabs(folder) or ".." in parts or folder.startswith("~") or parts[:1] == (".git",):
        step = "write it relative to the repository's top"
        raise UsageError(f"with git, source_dir is a folder of the repository, not {folder}", where=where, next_step=step)
    return os.path.normpath(folder) if parts else None


def clone(
    source: GitSource, folder: str | None, target: Path, progress: Callable[[str], None], environment: Mapping[str, str]
) -> Path:
    """Clone into the new directory ``target``; the source folder in it, with the wanted commit checked out.

    UsageError, with git's last lines, when the repository, branch, commit or folder is not to be had.
    """
    shown = masked(source)
    wanted = " ".join(filter(None, [shown.branch and f"branch {shown.branch}", shown.commit and f"commit {shown.commit}"]))
    progress(f"cloning {shown.repo}{', ' if wanted else ''}{wanted}")
    git = _Git(source, target, environment)
    if source.commit is None:
        git.fetch(["--depth=1", "--single-branch"], "--no-checkout")
        git.run("checkout", "--quiet")
    else:
        git.fetch(["--filter=blob:none", *(["--single-branch"] if source.branch else [])], "--no-checkout")
        git.run("checkout", "--quiet", "--detach", _found(git, source))
    _clone_submodules(git, folder, progress)
    return _inside(target, folder, shown)


@dataclass(frozen=True)
class _Git:
    """git, on one clone."""

    source: GitSource
    target: Path
    environment: Mapping[str, str]

    def fetch(self, cheap: Sequence[str], *options: str) -> None:
        """Clone with the options that spare bytes, and without where the server cannot (a plain web server)."""
        branch = [f"--branch={self.source.branch}"] if self.source.branch else []
        words = ["clone", "--quiet", "--no-tags", *options, *branch]
        url = _without_credentials(self.source)[0]
        done = self._start(*words, *cheap, "--", url, str(self.target))
        if done.returncode and _NOT_CHEAP.search(done.stderr):
            done = self._start(*words, "--", url, str(self.target))
        if done.returncode:
            raise self._refused(done)

    def fetch_submodules(self, paths: Sequence[str]) -> None:
        """Clone what lies at these paths, and below it; from folders of this machine only where the user's git may do that."""
        asked = self.ask("config", "--get", "protocol.file.allow").stdout.strip()
        schemes = [scheme for scheme in SCHEMES if scheme != "file" or asked == "always"]
        words = ["-C", str(self.target), "-c", f"core.hooksPath={os.devnull}", "submodule", "--quiet"]
        words += ["update", "--init", "--recursive"]
        done = self._start(*words, "--depth=1", "--", *paths, schemes=schemes)
        if done.returncode and _NOT_CHEAP.search(done.stderr):
            done = self._start(*words, "--", *paths, schemes=schemes)
        if done.returncode:
            step = "clone it yourself, and name the folder by --source-dir"
            raise self._refused(done, "git cannot clone its submodules", step)

    def run(self, *words: str) -> str:
        """git in the clone; what it printed."""
        done = self.ask(*words)
        if done.returncode:
            raise self._refused(done)
        return done.stdout.strip()

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """As `run`, whatever comes of it."""
        return self._start("-C", str(self.target), *words)

    def _start(self, *words: str, schemes: Sequence[str] = SCHEMES) -> subprocess.CompletedProcess[str]:
        quiet = ["-c", "advice.detachedHead=false", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never"]
        try:
            return subprocess.run(
                ["git", *quiet, *words],
                env=_environment(self.source, self.environment) | {"GIT_ALLOW_PROTOCOL": ":".join(schemes)},
                stdin=None if _terminal() else subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise UsageError(f"git cannot be started: {error.strerror}", next_step="install git on this machine") from error

    def _refused(
        self,
        done: subprocess.CompletedProcess[str],
        what: str = "git cannot clone it",
        step: str = "check the address; `git clone` by hand tells more",
    ) -> UsageError:
        said = hidden(_cleaned(done.stderr, self.source)).splitlines()
        lines = [line for line in said if line.strip()][-_LAST_LINES:]
        return UsageError(what, where=masked(self.source).repo, problems=lines, next_step=_step(done.stderr) or step)


# git's and ssh's words for what is wrong, and what can be done about it.
_STEPS = (
    ("Remote branch", "check the branch: `git ls-remote --heads --tags` lists those there are"),
    ("Host key verification failed", "record the server's key: connect once by `ssh` from a terminal"),
    ("Permission denied (publickey", "load the key that may read it: `ssh-add`"),
    ("could not read Username", "use a credential helper of git, or an ssh address; you are asked only in a terminal"),
    ("could not read Password", "check the token or password: git's credential helper, or the one in the address"),
    ("Authentication failed", "check the token or password: git's credential helper, or the one in the address"),
    ("dubious ownership", "say that you trust it: git config --global --add safe.directory FOLDER"),
    ("Could not resolve host", "check the address, and the network"),
    ("transport 'file' not allowed", "if you trust the repository: git config --global protocol.file.allow always"),
)


def _step(stderr: str) -> str | None:
    return next((step for words, step in _STEPS if words.lower() in stderr.lower()), None)


def _environment(source: GitSource, given: Mapping[str, str]) -> dict[str, str]:
    """git's: no question without a terminal, no other repository's variables, the credentials of the URL."""
    environment = {name: value for name, value in given.items() if name not in _LOCAL_VARIABLES}
    environment["LC_ALL"] = "C"
    if not _terminal():
        environment["GIT_TERMINAL_PROMPT"] = "0"
        if "GIT_SSH" not in given:
            environment["GIT_SSH_COMMAND"] = f"{given.get('GIT_SSH_COMMAND') or _ssh_command()} -o BatchMode=yes"
    url, name, password = _without_credentials(source)
    if name is not None:
        count = int(given.get("GIT_CONFIG_COUNT") or 0)
        # Of that server alone: a submodule, or an answer that leads on, may name any.
        key = "credential.{0.scheme}://{0.netloc}.helper".format(urlsplit(url))
        # An empty value first: no other helper is asked, and none stores what was in the URL.
        for number, value in enumerate(("", _HELPER), count):
            environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        environment |= {"GIT_CONFIG_COUNT": str(count + 2), "LAUNCHER_GIT_NAME": name, "LAUNCHER_GIT_PASSWORD": password or ""}
    return environment


def _ssh_command() -> str:
    asked = subprocess.run(["git", "config", "--get", "core.sshCommand"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "ssh"


def _terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _without_credentials(source: GitSource) -> tuple[str, str | None, str | None]:
    """(URL for git's command line, name, password) of an http URL; other URLs as they are."""
    if not source.repo.lower().startswith(("http://", "https://")):
        return source.repo, None, None
    parts = urlsplit(source.repo)
    if parts.username is None:
        return source.repo, None, None
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare, unquote(parts.username), None if parts.password is None else unquote(parts.password)


def _cleaned(text: str, source: GitSource) -> str:
    """git's words without what is secret in the URL, however they repeat it."""
    parts = urlsplit(source.repo) if "://" in source.repo else None
    secrets = [parts.password, *([parts.username] if source.repo.lower().startswith("http") else [])] if parts else []
    if parts is not None:
        secrets += re.findall(r"=([^&#]+)", parts.query)
    for secret in filter(None, secrets):
        for form in {secret, unquote(secret)}:
            # A short one is a part of many words.
            edges = ("", "") if len(form) > _SHORT else (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")
            text = re.sub(re.escape(form).join(edges), MASK, text)
    return text


def _found(git: _Git, source: GitSource) -> str:
    """The full name of the wanted commit, which is one of the branch where one is named."""
    where = masked(source).repo
    asked = git.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{source.commit}^{{commit}}")
    if asked.returncode and source.branch is None and len(source.commit or "") in (40, 64):
        # Of no branch: some servers give it to whoever knows its name.
        git.ask("fetch", "--quiet", "--depth=1", "origin", str(source.commit))
        asked = git.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{source.commit}^{{commit}}")
    commit = asked.stdout.strip()
    if asked.returncode or not commit:
        place = f"branch {source.branch}" if source.branch else "the repository"
        step = "check the commit, and whether it was pushed"
        raise UsageError(f"there is no commit {source.commit} in {place}", where=where, next_step=step)
    if source.branch is not None and git.ask("merge-base", "--is-ancestor", commit, "HEAD").returncode:
        what = f"commit {source.commit} is not of branch {source.branch}"
        raise UsageError(what, where=where, next_step="leave one of them out")
    return commit


def _clone_submodules(git: _Git, folder: str | None, progress: Callable[[str], None]) -> None:
    """Those in the source folder, or that it is in; what the repository has besides is not needed."""
    # Folders that are repositories of their own, and that .gitmodules says nothing of, cannot be had by anybody.
    named = git.ask("config", "-z", "--blob", "HEAD:.gitmodules", "--get-regexp", r"^submodule\..*\.path$").stdout.split("\0")
    paths = {entry.partition("\n")[2] for entry in named}
    staged = git.run("ls-files", "--stage", "-z").split("\0") if paths else []
    links = [entry.partition("\t")[2] for entry in staged if entry.startswith(_LINK) and entry.partition("\t")[2] in paths]
    here = f"{folder}/" if folder else ""
    wanted = [path for path in links if path.startswith(here) or here.startswith(f"{path}/")]
    if wanted:
        progress(f"cloning {len(wanted)} submodule{'s' * (len(wanted) != 1)}: {', '.join(wanted[:5])}{', …' * (len(wanted) > 5)}")
        git.fetch_submodules(wanted)


def _inside(target: Path, folder: str | None, shown: GitSource) -> Path:
    """The source folder in the clone; UsageError where there is none, or something of it leads out of the clone."""
    top, source = os.path.realpath(target), os.path.realpath(target / (folder or "."))
    if not os.path.isdir(source) or not (source + os.sep).startswith(top + os.sep):
        found = sorted(entry.name + "/" for entry in os.scandir(top) if entry.is_dir() and entry.name != ".git")[:12]
        raise UsageError(f"there is no folder {folder} in it", where=shown.repo, problems=found, next_step="check source_dir")
    outside = [
        os.path.relpath(path, source)
        for directory, folders, files in os.walk(source)
        for path in (os.path.join(directory, name) for name in [*folders, *files])
        if os.path.islink(path) and not os.path.isabs(os.readlink(path)) and not _below(top, path)
    ]
    if outside:
        problems = [f"{path}: a link out of the repository" for path in sorted(outside)[:20]]
        raise UsageError("the repository cannot be taken as it is", where=shown.repo, problems=problems)
    return Path(source)


def _below(top: str, path: str) -> bool:
    return (os.path.realpath(path) + os.sep).startswith(top + os.sep)
