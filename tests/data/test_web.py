"""Inputs from a web server, as real ones answer: with sizes and without, with pages in the place of folders."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.errors import LauncherError, StorageFailed
from launcher.inputs import Carrier, remote_cargo
from launcher.objects import Depot
from tests.data.peers import FakePeer

PAGE = b"".join(b'<a href="%s">x</a>' % link for link in (b"?C=N", b"a%20b", b"sub/", b"http://127.0.0.1:9/x", b"#top"))
FILES = {"/plain": b"plain", "/set/": PAGE, "/set/a%20b": b"one", "/set/sub/": b'<a href="c">c</a>', "/set/sub/c": b"two"}


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        """Folders have a slash.  Of /pieces it tells no size, to /refused it says no, of /later it only knows by GET."""
        if f"{self.path}/" in FILES:
            self.send_response(301)
            self.send_header("Location", f"{self.path}/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = FILES.get(self.path, b"hello" * 3)
        known = self.path in (*FILES, "/pieces", "/later")
        refused = self.command == "HEAD" and self.path == "/later"
        self.send_response(405 if refused else 403 if self.path == "/refused" else 200 if known else 404)
        if self.path == "/pieces":
            self.send_header("Transfer-Encoding", "chunked")
            content = b"".join(b"5\r\nhello\r\n" for _ in range(3)) + b"0\r\n\r\n"
        else:
            content = content if known and not refused else b""
            self.send_header("Content-Length", str(len(content)))
        if self.path.endswith("/"):
            self.send_header("Content-Type", "text/html")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *said: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """The server's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("path", "content"), [("plain", b"plain"), ("pieces", b"hello" * 3), ("later", b"hello" * 3)])
def test_a_file_of_a_web_server_is_brought_whole(web: str, tmp_path: Path, path: str, content: bytes) -> None:
    """Also where it tells no size, or none before it is asked for the file itself."""
    carrier, peer = Carrier("x", lambda text: None), FakePeer(tmp_path)
    cargo = remote_cargo(f"{web}/{path}")
    assert dict(cargo.sizes) == {path: len(content)}
    place = carrier.bring(peer, cargo, None, None, lambda done, total: None)
    carrier.close()
    assert Path(place).read_bytes() == content


def test_a_slash_at_the_end_means_the_files_of_a_page(web: str) -> None:
    """And of pages below it; other servers, ways to sort it and places on it are none of them."""
    depot = Depot(f"{web}/set/")
    assert {path: b"".join(depot.read(path)) for path in depot.listing()} == {"a b": b"one", "sub/c": b"two"}


def test_what_a_web_server_refuses_is_told_apart_from_what_is_not_there(web: str) -> None:
    """And neither is tried again and again."""
    with pytest.raises(LauncherError, match="there is nothing there"):
        remote_cargo(f"{web}/none")
    with pytest.raises(StorageFailed, match="403"):
        remote_cargo(f"{web}/refused")
