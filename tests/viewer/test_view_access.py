"""Only the holder of the address gets a page of the viewer, and a page loads nothing from elsewhere."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.viewer.site import TOKEN, Site, page, visit


def test_the_address_with_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(
    tmp_path: Path,
) -> None:
    async def steps(site: Site) -> None:
        first = await site.get(f"/runs?text=x&token={TOKEN}", allow_redirects=False)
        assert (first.status, first.headers["Location"]) == (303, "/runs?text=x")
        cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
        assert (await site.get("/runs")).status == 200

    visit(tmp_path, steps, token=None)


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example/x",
        "///evil.example/x",
        "/\\evil.example/x",
        "\\\\evil.example/x",
        "/\t/evil.example/x",
        "http://evil.example//evil.example/x",
        "//evil.example",
    ],
)
def test_the_token_in_an_address_leads_to_a_page_of_the_server_only(
    tmp_path: Path, target: str
) -> None:
    async def steps(site: Site) -> None:
        host = site.address.removeprefix("http://")
        reader, writer = await asyncio.open_connection(*host.split(":"))
        request = (
            f"GET {target}?token={TOKEN}&a=b HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode())
        head = (await reader.read()).decode().split("\r\n\r\n")[0]
        writer.close()
        for line in head.split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "location":
                assert re.match(r"/(?![/\\\x00-\x20])", value), value

    visit(tmp_path, steps, token=None)


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/assets/page.js", "/nothing", "/runs?token=", "/runs?token=%ff"]
)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_without_the_token_there_is_nothing(tmp_path: Path, path: str, token: str | None) -> None:
    answer = page(tmp_path, path, token=token)
    assert answer.status == 403
    assert "token is missing or wrong" in answer.text
    assert str(tmp_path) not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_a_foreign_host_is_refused_even_with_the_token(tmp_path: Path, host: str) -> None:
    async def steps(site: Site) -> None:
        port = site.address.rpartition(":")[2]
        answer = await site.get("/runs", headers={"Host": host.format(port=port)})
        assert (answer.status, "not this server's" in answer.text) == (403, True)

    visit(tmp_path, steps)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
)
def test_a_foreign_origin_is_refused_even_with_the_token(tmp_path: Path, origin: str) -> None:
    async def steps(site: Site) -> None:
        port = site.address.rpartition(":")[2]
        answer = await site.get("/runs", headers={"Origin": origin.format(port=port)})
        assert (answer.status, answer.text) == (403, "The request comes from another site.\n")
        assert (await site.get("/runs", headers={"Origin": site.address})).status == 200

    visit(tmp_path, steps)


def test_a_request_that_could_change_something_needs_an_origin(tmp_path: Path) -> None:
    async def steps(site: Site) -> None:
        assert (await site.ask("POST", "/runs")).status == 403

    visit(tmp_path, steps)


def test_every_answer_forbids_foreign_content_scripts_and_frames(tmp_path: Path) -> None:
    async def steps(site: Site) -> None:
        answers = [
            await site.get(path)
            for path in ("/runs", "/nothing", "/assets/page.css", "/runs?token=x")
        ]
        for answer in answers:
            policy = answer.headers["Content-Security-Policy"]
            assert (
                policy.startswith("default-src 'none'; ")
                and "unsafe" not in policy
                and "http" not in policy
            )
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"

    visit(tmp_path, steps)


def test_pages_have_no_inline_script_or_style_and_link_only_to_the_server(tmp_path: Path) -> None:
    text = page(tmp_path, "/runs").text
    markup = text.partition('id="data">')[0]
    assert not re.search(
        r"<script(?! src=\"/assets/| type=\"application/json\")|<style|\sstyle=|\son\w+=", markup
    )
    assert all(
        target.startswith(("/", "#"))
        for target in re.findall(r"(?:href|src|action)=\"([^\"]*)", markup)
    )
