"""What the tests of the report in a browser share: where things are on the page, actions, and labelled results."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from evaluator.batch import Score
from tests.batch.export.results import result
from tests.viewer.browser import Page

Steps = Callable[[Page], Awaitable[Any]]
ROWS = "[...document.querySelectorAll('#samples tbody tr')].map((row) => row.innerText)"
IDS = "[...document.querySelectorAll('#samples tbody th')].map((cell) => cell.innerText)"
COUNT = "document.querySelector('#samples .count').textContent"
DETAIL = "document.getElementById('detail')"
EACH_DETAIL = """
(async () => {
  const links = [...document.querySelectorAll('#samples a.verdict')].map((a) => a.getAttribute('href'));
  const texts = [];
  for (const href of links) {
    await new Promise((done) => {
      addEventListener('hashchange', () => setTimeout(done), { once: true });
      location.hash = href;
    });
    texts.push(document.getElementById('detail').textContent);
  }
  document.getElementById('detail').close();
  return texts;
})()
"""


LABELS = ("metal", "gas")
WRONG = {"includes": Score(0.0, False)}


def labelled(count: int) -> Iterator[Any]:
    for number in range(count):
        target, answer = LABELS[number % 2], LABELS[number % 3 % 2]
        score = Score(float(target == answer), target == answer, answer, "compared")
        yield result(f"s{number:03d}", target=target, place=number, scores={"label": score})


def then(action: str) -> str:
    """JavaScript that does something which changes the address, and waits until the page has followed."""
    return (
        "new Promise((done) => { addEventListener('hashchange', () => setTimeout(done), {once: true});"
        f" {action}; }})"
    )


def choose(name: str, value: str) -> str:
    return then(
        f"const s = document.getElementById('choose-{name}'); s.value = {json.dumps(value)};"
        " s.dispatchEvent(new Event('change'))"
    )


def chip(name: str) -> str:
    return then(f"document.getElementById('chip-{name}').click()")


def click_sort(name: str) -> str:
    return then(f"document.getElementById('sort-{name}').click()")
