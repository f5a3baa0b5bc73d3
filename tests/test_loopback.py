"""The server on loopback that tests of backends use."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from evaluator.testing import Answer, LoopbackServer


def ask(server: LoopbackServer) -> str:
    url = f"{server.base_url}/chat/completions"
    request = urllib.request.Request(url, json.dumps({}).encode())
    with urllib.request.urlopen(request, timeout=200) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def test_a_reply_that_is_enqueued_after_a_request_has_arrived_is_for_the_next_one() -> None:
    with LoopbackServer(default=Answer("at once")) as server:

        class Bodies(list[dict[str, Any]]):
            """Enqueues as early as a thread that waits for the request may do so."""

            def append(self, body: dict[str, Any], /) -> None:
                super().append(body)
                if len(self) == 1:
                    server.enqueue(Answer("later"))

        server.bodies = Bodies()
        assert [ask(server), ask(server), ask(server)] == ["at once", "later", "at once"]
