"""`fetch_url` returns the text of a page; where it leads is for the user to decide again."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from evaluator.tools import FileAccess, ToolContext, builtin_tools, web

PAGES = {
    "/page": (
        "text/html; charset=utf-8",
        "<html><head><title>Gold</title><script>evil()</script></head>"
        "<body><h1>Gold</h1><p>2,312   dollars</p><style>p{}</style></body></html>",
    ),
    "/data": ("application/json", '{"price": 2312}'),
    "/image": ("image/png", "x"),
    "/long": ("text/plain", "a" * web.MAX_CHARS + "the end"),
    "/huge": ("text/plain", "a" * (web.MAX_BYTES + 1)),
}


@pytest.fixture
def server():
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "http://elsewhere.example/x")
                self.end_headers()
                return
            kind, text = PAGES.get(self.path, ("text/plain", "not found"))
            self.send_response(200 if self.path in PAGES else 404)
            self.send_header("Content-Type", kind)
            self.end_headers()
            try:
                self.wfile.write(text.encode())
            except OSError:
                pass  # the tool has read enough

        def log_message(self, *args):
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    found.seen = seen
    found.url = f"http://127.0.0.1:{found.server_port}"
    yield found
    found.shutdown()
    found.server_close()


class Yes:
    def __init__(self):
        self.asked = []

    async def ask(self, question, **_):
        self.asked.append(question)
        return "yes"


def fetch(tmp_path, url, asker=None, **arguments):
    context = ToolContext(roots=FileAccess([tmp_path]), asker=asker or Yes())
    return asyncio.run(
        builtin_tools().call("fetch_url", json.dumps({"url": url, **arguments}), context)
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/page", {"status": 200, "text": "Gold\nGold\n2,312 dollars"}),
        ("/data", {"status": 200, "text": '{"price": 2312}'}),
        ("/missing", {"status": 404, "text": "not found"}),
        ("/moved", {"status": 302, "redirects_to": "http://elsewhere.example/x"}),
    ],
)
def test_a_page_is_returned_as_text_and_a_redirect_as_an_address(tmp_path, server, path, expected):
    asker = Yes()
    found = json.loads(fetch(tmp_path, server.url + path, asker).content)
    if path == "/page":
        found["text"] = "\n".join(found["text"].split("\n"))
        assert "evil" not in found["text"] and "2,312 dollars" in found["text"]
    else:
        assert found == expected
    assert len(asker.asked) == 1 and server.url + path in str(asker.asked[0])
    ((_, headers),) = server.seen
    assert not {"Cookie", "Authorization"} & set(headers)


def test_nothing_is_fetched_without_consent(tmp_path, server):
    context = ToolContext(roots=FileAccess([tmp_path]), asker=None)
    refused = asyncio.run(
        builtin_tools().call("fetch_url", json.dumps({"url": f"{server.url}/page"}), context)
    )
    assert refused.error and server.seen == []


def test_a_long_page_is_read_in_parts_and_a_huge_one_is_refused(tmp_path, server):
    first = json.loads(fetch(tmp_path, f"{server.url}/long").content)
    rest = json.loads(fetch(tmp_path, f"{server.url}/long", start=first["continues_at"]).content)
    assert rest == {"status": 200, "text": "the end"}
    assert "is larger than" in fetch(tmp_path, f"{server.url}/huge").content


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("file:///etc/passwd", "is not an address"),
        ("ftp://host/x", "is not an address"),
        ("https://", "is not an address"),
        ("http://[", "is not an address"),
        ("https://user:secret@host/", "user name or password"),
        ("http://169.254.169.254/latest/meta-data", "local link"),
        ("http://[::ffff:169.254.169.254]/", "local link"),
        ("http://127.0.0.1:1/", "cannot be fetched"),
    ],
)
def test_other_addresses_are_refused_with_the_reason(tmp_path, url, problem):
    assert problem in fetch(tmp_path, url).content


def test_an_image_is_refused(tmp_path, server):
    assert "is not text" in fetch(tmp_path, f"{server.url}/image").content
