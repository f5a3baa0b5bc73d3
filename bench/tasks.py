"""The task that the throughput benchmarks run: a short atomic template, and the message it comes
to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluator import TemplateLibrary

NAME = "answer_briefly"
TEMPLATE = f"""<task type="atomic" name="{NAME}">
  <description>Answer one question about a short text</description>
  <inputs>
    <input name="text" type="string" required="true">what the answer is taken from</input>
    <input name="question" type="string" required="true">what is asked</input>
  </inputs>
  <instructions>Answer the question from the text alone, in one sentence.

Text: {{{{ text }}}}

Question: {{{{ question }}}}</instructions>
</task>
"""
TEXT = (
    "The ferry leaves the eastern pier at six every morning, crosses to the island in forty "
    "minutes, and "
    "returns at noon. On Sundays it leaves at eight. Bicycles travel free; dogs need a ticket of "
    "their own."
)


def library(folder: Path) -> TemplateLibrary:
    """The template, loaded from a file in `folder`, which is made."""
    from evaluator import TemplateLibrary

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.xml").write_text(TEMPLATE, encoding="utf-8")
    return TemplateLibrary.load(folder, shipped=False)


def row(number: int) -> dict[str, Any]:
    return {"text": TEXT, "question": f"When does the ferry number {number} leave, and from where?"}


def messages(inputs: dict[str, Any]) -> list[dict[str, str]]:
    """What the model sees for `inputs`, put together without this package."""
    content = (
        "Answer the question from the text alone, in one sentence.\n\n"
        f"Text: {inputs['text']}\n\nQuestion: {inputs['question']}"
    )
    return [{"role": "user", "content": content}]
