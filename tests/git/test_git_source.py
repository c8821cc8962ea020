"""Cloning a source folder: what is had, what is refused, and what nobody gets to read."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.git_source import address, check, check_folder, clone, masked
from launcher.model import GitSource
from tests.git.conftest import Repository


def cloned(source: GitSource, target: Path, folder: str | None = "src") -> str:
    """What the training script of the clone would print, and what was told."""
    told: list[str] = []
    path = clone(check(source, "git"), folder, target, told.append, os.environ)
    assert (path / "train.py").exists()
    return (path / "train.py").read_text()[7:-3]


def refusal(source: GitSource, target: Path, folder: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        clone(check(source, "git"), folder, target, lambda text: None, os.environ)
    return str(caught.value)


def test_branch_tag_and_commit(repository: Repository, tmp_path: Path) -> None:
    """The default branch, another one, a tag, and any commit of a branch, by a part of its name too."""
    url, commits = repository.url, repository.commits
    wanted = [
        (GitSource(url), "two"),
        (GitSource(url, "side"), "side"),
        (GitSource(url, "v1"), "one"),
        (GitSource(url, "main", commits["first"]), "one"),
        (GitSource(url, None, commits["aside"][:10]), "side"),
        (GitSource(str(repository.bare)), "two"),
    ]
    assert [cloned(source, tmp_path / str(number)) for number, (source, _) in enumerate(wanted)] == [text for _, text in wanted]


def test_only_the_newest_commit_is_fetched_where_that_will_do(repository: Repository, tmp_path: Path) -> None:
    """A branch needs no history."""
    cloned(GitSource(repository.url), tmp_path / "clone")
    assert subprocess.check_output(["git", "-C", tmp_path / "clone", "rev-list", "--count", "HEAD"]) == b"1\n"


def test_a_commit_is_of_its_branch(repository: Repository, tmp_path: Path) -> None:
    """One of another branch, and one of nowhere, are errors that name both."""
    aside = repository.commits["aside"]
    text = refusal(GitSource(repository.url, "main", aside), tmp_path / "a")
    assert f"no commit {aside} in branch main" in text or f"commit {aside} is not of branch main" in text
    assert "there is no commit 1234567 in the repository" in refusal(GitSource(repository.url, None, "1234567"), tmp_path / "b")
    assert "no commit" in refusal(GitSource(repository.url, None, "1" * 40), tmp_path / "c")


def test_gits_last_lines_and_the_next_step(repository: Repository, tmp_path: Path) -> None:
    """Of a branch that is not there, of no repository, of a host that is not there."""
    text = refusal(GitSource(repository.url, "nope"), tmp_path / "a")
    assert "Remote branch nope not found" in text and "git ls-remote" in text
    text = refusal(GitSource(f"file://{tmp_path}/none.git"), tmp_path / "b")
    assert "does not appear to be a git repository" in text and "next:" in text
    assert "there is no folder nope in it" in refusal(GitSource(repository.url), tmp_path / "c", "nope")


@pytest.mark.parametrize(
    "repo",
    ["--upload-pack=touch /x", "ext::sh -c id", "fd::7", "ext://x", "", "x y://a/b", "ssh://-oX=id/x", "https:///x", "a\nb"],
)
def test_what_git_would_take_for_something_else_is_refused(repo: str) -> None:
    """Options, programs, and addresses without a host; nothing is started."""
    with pytest.raises(UsageError, match="repo: "):
        check(GitSource(repo), "--git")


def test_all_that_is_wrong_is_told_at_once() -> None:
    """Branches and commits that look like options, too."""
    with pytest.raises(UsageError) as caught:
        check(GitSource("ext::x", "-b", "--all"), "--git")
    assert len(caught.value.problems) == 3
    for branch in ("a..b", "a b", "a~1", "x.lock", "@{-1}", "/a", "a/"):
        with pytest.raises(UsageError, match="is no name of a branch"):
            check(GitSource("https://h/x", branch), "--git")
    for branch in ("main", "feature/x-1", "v1.2", "ü"):
        check(GitSource("git@host:x.git", branch), "--git")


@pytest.mark.parametrize("folder", ["/etc", "../x", "a/../../b", "~/x", ".git/hooks"])
def test_the_source_folder_stays_in_the_repository(folder: str) -> None:
    """However it is written."""
    with pytest.raises(UsageError, match="a folder of the repository"):
        check_folder(folder, "--source-dir")
    assert [check_folder(good, "") for good in ("src", "./src/", "a/b", ".", None)] == ["src", "src", "a/b", None, None]


def test_links_out_of_the_clone_are_refused(repository: Repository, tmp_path: Path) -> None:
    """Nobody's repository brings files of this machine to the nodes: neither as a link in it nor as the folder itself."""
    (repository.work / "src/key").symlink_to("../../../../../../../etc/passwd")
    (repository.work / "src/inside").symlink_to("../README")
    (repository.work / "out").symlink_to("../../../../../../../../etc")
    (repository.work / "README").write_text("x")
    repository.commit("links", "links")
    repository.push()
    text = refusal(GitSource(repository.url), tmp_path / "a", "src")
    assert "key: a link out of the repository" in text and "inside" not in text
    assert "there is no folder out in it" in refusal(GitSource(repository.url), tmp_path / "b", "out")


def with_submodule(repository: Repository, url: str, name: str = "libs") -> None:
    """A commit that has a submodule of that address."""
    repository.git("submodule", "--quiet", "add", "--name", name, repository.url, name)
    repository.git("config", "--file", ".gitmodules", f"submodule.{name}.url", url)
    repository.commit(f"with {name}", "with")
    repository.push()
    subprocess.run(["git", "-C", repository.bare, "update-server-info"], check=True)


@pytest.fixture
def files_allowed(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As somebody's git may be told to take submodules from folders; after the repository, which allows nothing."""
    config = tmp_path / "gitconfig"
    config.write_text("[protocol \"file\"]\n\tallow = always\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))


@pytest.mark.usefixtures("files_allowed")
def test_submodules_are_cloned_where_the_source_folder_has_them(repository: Repository, tmp_path: Path) -> None:
    """Those of submodules, too, of a branch and of a commit; a folder that has none of them waits for none."""
    other = repository.work.parent / "other.git"
    subprocess.run(["git", "clone", "-q", "--bare", repository.url, str(other)], check=True)
    with_submodule(repository, str(other), "inner")
    subprocess.run(["git", "clone", "-q", "--bare", repository.url, str(tmp_path / "nested.git")], check=True)
    with_submodule(repository, "../nested.git", "libs")
    repository.git("-C", "libs", "fetch", "-q", str(tmp_path / "nested.git"), "main")
    repository.git("-C", "libs", "checkout", "-q", "FETCH_HEAD")
    repository.commit("newer libs", "newer")
    repository.push()
    newest = GitSource(repository.url)
    for number, source in enumerate((newest, GitSource(repository.url, None, repository.commits["newer libs"]))):
        told: list[str] = []
        top = clone(check(source, ""), None, tmp_path / str(number), told.append, os.environ)
        assert told[-1] == "cloning 2 submodules: inner, libs"
        for script in ("src/train.py", "inner/src/train.py", "libs/src/train.py", "libs/inner/src/train.py"):
            assert (top / script).is_file(), script
    told = []
    assert clone(check(newest, ""), "src", tmp_path / "src", told.append, os.environ).name == "src"
    assert len(told) == 1 and not list((tmp_path / "src/libs").iterdir())
    inside = clone(check(newest, ""), "libs/src", tmp_path / "in", told.append, os.environ)
    assert (inside / "train.py").is_file() and told[-1] == "cloning 1 submodule: libs"


@pytest.mark.parametrize("url", ["FILE", "ext::sh -c 'touch TOUCHED'", "-uTOUCHED", "ssh://-oProxyCommand=touch TOUCHED/x"])
def test_a_submodule_is_no_way_to_this_machine_s_folders_or_programs(repository: Repository, tmp_path: Path, url: str) -> None:
    """What its address says is refused as git refuses it, with what can be done; nothing is started."""
    mark = tmp_path / "touched"
    with_submodule(repository, url.replace("FILE", repository.url).replace("TOUCHED", str(mark)))
    text = refusal(GitSource(repository.url), tmp_path / "clone")
    assert "git cannot clone its submodules" in text and "next:" in text and not mark.exists()
    assert ("protocol.file.allow" in text) == (url == "FILE")


@pytest.mark.usefixtures("files_allowed")
def test_hooks_and_commands_of_a_repository_are_not_run(repository: Repository, tmp_path: Path) -> None:
    """Neither what .gitmodules would have done instead of a checkout."""
    with_submodule(repository, repository.url)
    repository.git("config", "--file", ".gitmodules", "submodule.libs.update", f"!touch {tmp_path}/touched")
    repository.commit("evil", "evil")
    repository.push()
    text = refusal(GitSource(repository.url), tmp_path / "clone")
    assert "git cannot clone its submodules" in text and "not allowed" not in text and not (tmp_path / "touched").exists()


def test_a_folder_that_is_a_repository_of_its_own_without_an_address_stays_empty(repository: Repository, tmp_path: Path) -> None:
    """Nobody could clone it."""
    with_submodule(repository, repository.url)
    repository.git("rm", "-q", "--cached", ".gitmodules")
    repository.git("commit", "-q", "-m", "no modules")
    repository.push()
    path = clone(check(GitSource(repository.url), ""), None, tmp_path / "clone", lambda text: None, os.environ)
    assert (path / "src/train.py").is_file() and not list((path / "libs").iterdir())


def test_what_opens_doors_is_masked() -> None:
    """Passwords, names of http addresses, values of queries; who somebody is at an ssh server is no secret."""
    assert [masked(GitSource(repo)).repo for repo in (
        "https://me:t0ken@host/x.git", "https://t0ken@host:8/x", "https://host/x?private_token=t0ken&a=t0ken", "ssh://git:t0ken@host/x",
        "ssh://git@host/x", "git@host:x.git", "https://host/x@y",
    )] == [
        "https://****@host/x.git", "https://****@host:8/x", "https://host/x?private_token=****&a=****", "ssh://git:****@host/x",
        "ssh://git@host/x", "git@host:x.git", "https://host/x@y",
    ]  # fmt: skip
    assert address(GitSource("https://me:t0ken@host/x.git?y=t0ken")) == "https://host/x.git"


def test_what_git_says_is_masked_and_can_be_read(tmp_path: Path) -> None:
    """A name of one letter is a part of many words, which stay; where it stands by itself it is masked."""
    with pytest.raises(UsageError) as told:
        clone(
            check(GitSource("http://u:hunter2@127.0.0.1:9/u/x.git"), ""), None, tmp_path / "clone", lambda text: None, os.environ
        )
    assert "hunter2" not in str(told.value) and "unable to access 'http://127.0.0.1:9/****/x.git/'" in str(told.value)


class _Private(http.server.SimpleHTTPRequestHandler):
    """A plain web server that wants a name and a password, and writes down the processes there were meanwhile."""

    seen: list[bytes]

    def do_GET(self) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # processes end all the time
                self.seen.append(path.read_bytes())
        if self.headers.get("Authorization") == "Basic " + base64.b64encode(b"me:p@ss w0rd").decode():
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.end_headers()
        return None

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def web(repository: Repository) -> Iterator[tuple[str, type[_Private]]]:
    subprocess.run(["git", "-C", repository.bare, "update-server-info"], check=True)
    kind = type("Private", (_Private,), {"seen": []})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *given: kind(*given, directory=str(repository.bare.parent))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}/repo.git", kind
        server.shutdown()


def test_a_password_in_the_address_reaches_the_server_and_nobody_else(
    web: tuple[str, type[_Private]], repository: Repository, tmp_path: Path
) -> None:
    """It is on no command line and not in the clone; a server that knows only whole histories is asked for one."""
    place, kind = web
    for number, source in enumerate([GitSource(""), GitSource("", "main", repository.commits["first"])]):
        url = f"http://me:p%40ss%20w0rd@{place}"
        assert cloned(GitSource(url, source.branch, source.commit), tmp_path / str(number)) == ("two", "one")[number]
    assert kind.seen and not [line for line in kind.seen if b"w0rd" in line]
    assert not [path for path in (tmp_path / "0").rglob("*") if path.is_file() and b"w0rd" in path.read_bytes()]


def test_a_password_is_for_its_own_server_alone(
    web: tuple[str, type[_Private]], repository: Repository, tmp_path: Path
) -> None:
    """Submodules beside the repository are had with it; one that names another server sends nothing there."""
    place, kind = web
    with_submodule(repository, "../repo.git", "beside")
    url = f"http://me:p%40ss%20w0rd@{place}"
    path = clone(check(GitSource(url), ""), None, tmp_path / "clone", lambda text: None, os.environ)
    assert (path / "beside/src/train.py").is_file()
    assert not [line for line in kind.seen if b"w0rd" in line]
    asked: list[str | None] = []
    other = type("Other", (_Private,), {"seen": [], "do_GET": lambda self: asked.append(self.headers.get("Authorization")) or
                                        _Private.do_GET(self)})  # fmt: skip
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with_submodule(repository, f"http://127.0.0.1:{server.server_port}/x.git", "elsewhere")
        text = refusal(GitSource(url), tmp_path / "other")
        server.shutdown()
    assert "git cannot clone its submodules" in text and "could not read Username" in text
    assert asked and set(asked) == {None} and "w0rd" not in text


@pytest.mark.parametrize("repo", ["https://host/x.git?private_token=t0ken", "ssh://git:t0ken@host/x.git", "git://me:t0ken@host/x"])
def test_what_could_only_stand_on_a_command_line_is_refused(repo: str) -> None:
    """With what to write, and without the secret."""
    with pytest.raises(UsageError, match="command line") as told:
        check(GitSource(repo), "--git")
    assert "t0ken" not in str(told.value)


def test_without_the_password_nobody_is_asked(web: tuple[str, type[_Private]], tmp_path: Path) -> None:
    """Where there is no terminal; a wrong one is not repeated in the message."""
    text = refusal(GitSource(f"http://{web[0]}"), tmp_path / "a")
    assert "could not read Username" in text and "credential helper" in text
    text = refusal(GitSource(f"http://me:wr0ng@{web[0]}"), tmp_path / "b")
    assert "wr0ng" not in text and "****" in text and "Authentication failed" in text


def test_ssh_is_asked_without_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the user's own ssh command, in batch mode."""
    ssh = tmp_path / "ssh"
    refuses = "echo 'Permission denied (publickey).' >&2; exit 255"
    ssh.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n{refuses}\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    text = refusal(GitSource("git@host.invalid:x.git"), tmp_path / "a")
    assert "Permission denied" in text and "ssh-add" in text
    assert "-o BatchMode=yes" in (tmp_path / "words").read_text()
