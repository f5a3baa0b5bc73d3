"""Loads, validates and checks 1,000 templates of every operator in one process; imports included.

    python bench/load.py [--count 1000] [--runs 3] [--profile]

The templates are atomic tasks (seven of ten), sequences with `cond` and `call`, functions, and
reductions, in ten folders, 18 lines each on average. What is timed is `TemplateLibrary.load`:
reading, the schema, building the nodes, and every check; the best of `--runs` fresh processes,
because what disturbs a run only ever adds to it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import Figure, parser_for, remarks, report

GOAL_S = 2.0
_TOPICS = "invoice contract ticket review lecture report recipe release survey memo"
TOPICS = _TOPICS.split()
_VERBS = "summarise classify extract grade rewrite translate compare outline verify title"
VERBS = _VERBS.split()


def atomic(name: str, verb: str, topic: str, number: int) -> str:
    return f"""<task type="atomic" name="{name}" subtype="standard" version="1.{number}">
  <description>{verb.capitalize()} a {topic} for a reader who has {number % 7 + 1} minutes.</description>
  <criteria>{verb}, {topic}, short, faithful, number {number}</criteria>
  <system>You work with care on texts of the kind {topic} and never invent a fact.</system>
  <handler max_turns="{number % 5 + 1}" max_output_tokens="800" timeout="60"/>
  <inputs>
    <input name="text" type="string" required="true">the {topic} itself</input>
    <input name="words" type="integer" default="{number % 90 + 10}">the length of the answer</input>
    <input name="audience" type="string" default="colleagues">who will read it</input>
  </inputs>
  <instructions>
    Case {number}: read this {topic} and {verb} it for {{{{ audience }}}} in at most {{{{ words }}}} words.

    {{% if words > 50 %}}Begin with one sentence that says it all.{{% endif %}}
    Keep to what is written. Where something is unclear, say so.

    &lt;{topic}&gt;
    <<text>>
    &lt;/{topic}&gt;
  </instructions>
  <output_format type="json">{{
    "type": "object",
    "properties": {{"answer": {{"type": "string"}}, "sure": {{"type": "boolean"}}}},
    "required": ["answer"]
  }}</output_format>
  <examples>
    <example>
      <input name="text">A {topic} of day {number}, with three points and a sum of {number * 3}.</input>
      <output>{{"answer": "Three points, {number * 3} in sum.", "sure": true}}</output>
    </example>
  </examples>
</task>
"""


def sequential(name: str, verb: str, topic: str, number: int) -> str:
    return f"""<task type="sequential" name="{name}">
  <description>Extract the points of a {topic}, then {verb} them ({number}).</description>
  <inputs>
    <input name="document" type="string" required="true">the {topic}</input>
  </inputs>
  <context_management>
    <inherit_context>none</inherit_context>
    <accumulate_data>true</accumulate_data>
    <accumulation_format>full_output</accumulation_format>
  </context_management>
  <steps>
    <task type="atomic" name="extract">
      <description>List the points of the {topic}</description>
      <instructions>List every point of {topic} {number}: {{{{ document }}}}</instructions>
      <output_format type="json" schema="string[]"/>
    </task>
    <cond name="choose">
      <case test="steps.extract.parsed | length > {number % 6 + 3}">
        <task type="atomic"><description>Shorten the list of points</description>
          <instructions>Keep the {number % 6 + 3} points that count: {{{{ previous.content }}}}</instructions>
        </task>
      </case>
      <default>
        <call template="{name}_join"><arg name="points">steps.extract.parsed</arg></call>
      </default>
    </cond>
    <task type="atomic" name="finish">
      <description>{verb.capitalize()} the points</description>
      <inputs><input name="points" from="steps.choose.content"/></inputs>
      <instructions>{verb.capitalize()} these points of a {topic}: <<points>></instructions>
    </task>
  </steps>
</task>
"""


def function(name: str, verb: str, topic: str, number: int) -> str:
    return f"""<template name="{name}" params="points, style" returns="string">
  <description>Joins the points of a {topic}, to {verb} them later.</description>
  <task type="atomic" name="{name}_body">
    <description>Join the points of the {topic} in one text</description>
    <instructions>
      Write one text of these points, in the style {{{{ style }}}}:
      {{% for point in points %}}- {{{{ point }}}}
      {{% endfor %}}
      Number {number}.
    </instructions>
  </task>
</template>
"""


def reduction(name: str, verb: str, topic: str, number: int) -> str:
    return f"""<task type="reduce" name="{name}" concurrency="{number % 4 + 1}">
  <description>{verb.capitalize()} many of the kind {topic}, one after the other ({number})</description>
  <inputs>
    <input name="documents" type="string[]" required="true">the texts</input>
  </inputs>
  <initial_value>nothing yet</initial_value>
  <inner_task type="atomic">
    <description>Read one {topic}</description>
    <instructions>Say briefly what number {{{{ index + 1 }}}} holds: {{{{ current_input }}}}</instructions>
  </inner_task>
  <reduction_task type="atomic">
    <description>Bring the results together</description>
    <instructions>
      So far: {{{{ accumulator }}}}
      New: {{{{ current_result }}}}
      {verb.capitalize()} both in one text, case {number}.
    </instructions>
  </reduction_task>
</task>
"""


def write(folder: Path, count: int) -> int:
    """Writes `count` template files in ten folders; returns the number of lines."""
    lines = 0
    for number in range(count):
        verb, topic = VERBS[number % 10], TOPICS[number // 10 % 10]
        name = f"{verb}_{topic}_{number}"
        kind = number % 10
        if kind == 0:
            text = sequential(name, verb, topic, number)
        elif kind == 1:
            before = f"{VERBS[0]}_{TOPICS[(number - 1) // 10 % 10]}_{number - 1}"
            text = function(f"{before}_join", verb, topic, number).replace(
                "points, style", "points, style=plain"
            )
        elif kind == 2:
            text = reduction(name, verb, topic, number)
        else:
            text = atomic(name, verb, topic, number)
        path = folder / topic / f"{name}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        lines += text.count("\n")
    return lines


CHILD = """
import json, sys, time
started = time.perf_counter()
from evaluator.library.loader import TemplateLibrary
imported = time.perf_counter()
library = TemplateLibrary.load(sys.argv[1], shipped=False)
loaded = time.perf_counter()
library.reload()
reloaded = time.perf_counter()
print(json.dumps({
    "templates": len(library), "errors": [str(d) for d in library.errors], "warnings": len(library.warnings),
    "import_s": imported - started, "load_s": loaded - imported, "reload_s": reloaded - loaded,
}))
"""


def load_once(folder: Path, count: int) -> dict[str, Any]:
    """The times of one fresh process. Raises: SystemExit, if not all templates are good."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    if found["templates"] != count or found["errors"]:
        raise SystemExit(f"{found['templates']} of {count} templates loaded; {found['errors'][:5]}")
    return found


def profile(folder: Path) -> None:
    """Prints the share of each module; the profiler itself makes everything slower."""
    import cProfile
    import pstats

    from evaluator.library.loader import TemplateLibrary

    profiler = cProfile.Profile()
    profiler.enable()
    TemplateLibrary.load(folder, shipped=False)
    profiler.disable()
    shares: dict[str, float] = {}
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for (file, _, function_name), (_, _, own, _, _) in stats.items():
        where = function_name[:60] if file == "~" else "/".join(Path(file).parts[-2:])
        shares[where] = shares.get(where, 0.0) + own
    total = sum(shares.values())
    for where, own in sorted(shares.items(), key=lambda item: -item[1])[:25]:
        print(f"{own:7.3f} s {100 * own / total:5.1f} %  {where}")


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--profile", action="store_true", help="print where the time goes, by module, instead"
    )
    arguments = parser.parse_args()
    say = remarks(arguments.json)
    folder = Path(tempfile.mkdtemp(prefix="evaluator-load-"))
    try:
        lines = write(folder, arguments.count)
        if arguments.profile:
            profile(folder)
            return
        runs = [load_once(folder, arguments.count) for _ in range(arguments.runs)]
    finally:
        shutil.rmtree(folder)
    best = min(runs, key=lambda run: run["import_s"] + run["load_s"])
    say(
        f"{arguments.count} templates of {lines / arguments.count:.0f} lines, {best['warnings']} "
        "warnings"
    )
    totals = [f"{run['import_s'] + run['load_s']:.2f} s" for run in runs]
    say(f"all runs: {', '.join(totals)}")
    figures = [
        Figure(
            f"load {arguments.count} templates",
            best["import_s"] + best["load_s"],
            "s",
            GOAL_S * arguments.count / 1000,
        ),
        Figure("  of which imports", best["import_s"], "s"),
        Figure("reload, nothing changed", best["reload_s"], "s"),
    ]
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
