"""Describers find names and headings, are bounded for every file, and take nothing out of bodies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.memory.describe import Description, describe
from evaluator.memory.describe.code import MAX_ITEMS

PYTHON = '''"""Ferries across the strait.

More about them.
"""
MAX_PASSENGERS = 12
harbour = "quay 7"

class Ferry:
    """A vessel with a timetable."""
    DECKS = 3
    async def depart(self):
        def inner(): ...

if harbour:
    def moor():
        """Ties it up.

        Slowly."""
try:
    from x import y
except ImportError:
    def fallback(): ...
'''
TYPESCRIPT = """#!/usr/bin/env node
// Copyright somebody
import x from "y";
export default class Harbour extends Place {
  private async openGate(key: string): Promise<void> {
    if (key) { return }
  }
}
export const berth = (n: number) => n + 1;
interface Quay { length: number }
module.exports.sail = async function () {};
"""
GO = "// Package tide computes tides.\npackage tide\n\nfunc (m *Moon) Pull(x int) error {\n}\ntype Moon struct {\n}\n"
RUST = "//! Locks and keys.\npub(crate) async fn unlock(k: Key) {}\npub struct Key;\n  impl Key { pub const fn turn(&self) {} }\nmacro_rules! bolt { }\n"
JAVA = """package org.sea;
public final class Buoy extends Float {
    private static final int X = 1;
    public Buoy(int x) {
    @Override public synchronized List<String> signalNames(int a,
    void drift() {
        return go(now);
"""
CPP = """/* Copyright 2001 */
#define ANCHOR_DEPTH 12
namespace sea {
class EXPORTED Anchor : public Iron {
  void lower(int metres) const;
};
typedef struct chain { int n; } chain_t;
static int
count_links(const chain_t *c)
{
  if (c) return total(c);
}
}
"""
RUBY = "# Draws charts of shoals.\nmodule Chart\n  class Shoal < Base\n    DEPTH = 3\n    def self.sound(line)\n    def deep?\n"
PHP = "<?php\nnamespace Sea\\Wind;\nabstract class Sail implements Cloth {\n  const AREA = 3;\n  public static function &hoist($x) {}\n}\nfunction reef() {}\n"
CSHARP = "namespace Sea.Port {\n  public sealed class Crane : Machine {\n    public async Task<int> LiftAsync(int kg) {\n    public int Reach { get; set; }\n"
SHELL = "#!/bin/sh\n# Moves containers about.\nload_ship() {\n  echo x\n}\nfunction unload {\n"

CODE = [
    (
        "a.py",
        PYTHON,
        "Ferries across the strait.",
        ["MAX_PASSENGERS", "Ferry", "DECKS", "depart", "moor", "fallback"],
        ["inner", "harbour"],
    ),
    (
        "a.py",
        PYTHON + "\ndef broken(:",
        "",
        ["MAX_PASSENGERS", "Ferry", "depart", "moor", "broken"],
        ["harbour"],
    ),
    (
        "a.ts",
        TYPESCRIPT,
        "",
        ["Harbour", "openGate", "berth", "Quay", "sail"],
        ["if", "return", "key"],
    ),
    ("a.go", GO, "Package tide computes tides.", ["tide", "Pull", "Moon"], ["x", "m"]),
    ("a.rs", RUST, "Locks and keys.", ["unlock", "Key", "bolt"], ["k"]),
    ("a.java", JAVA, "", ["org.sea", "Buoy", "drift"], ["go", "return"]),
    (
        "a.cpp",
        CPP,
        "",
        ["ANCHOR_DEPTH", "sea", "Anchor", "lower", "chain_t", "count_links"],
        ["if", "total"],
    ),
    (
        "a.rb",
        RUBY,
        "Draws charts of shoals.",
        ["Chart", "Shoal", "DEPTH", "sound", "deep"],
        ["line"],
    ),
    ("a.php", PHP, "", ["Sea\\Wind", "Sail", "AREA", "hoist", "reef"], ["x"]),
    ("a.cs", CSHARP, "", ["Sea.Port", "Crane", "LiftAsync", "Reach"], ["kg"]),
    ("a.sh", SHELL, "Moves containers about.", ["load_ship", "unload"], ["echo"]),
    ("tool", SHELL, "Moves containers about.", ["load_ship", "unload"], ["echo"]),
    ("tool", "#!/usr/bin/env python3\nclass Winch: ...", "", ["Winch"], []),
]


@pytest.mark.parametrize(
    ("path", "text", "summary", "names", "absent"), CODE, ids=[row[0] for row in CODE]
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_sources_are_described_by_what_they_define(
    path: str, text: str, summary: str, names: list[str], absent: list[str], ends: str
) -> None:
    found = describe(path, text.replace("\n", ends))
    assert found.summary == summary
    assert set(names) <= set(found.names)
    assert not set(absent) & set(found.names)


def test_first_lines_of_docstrings_are_headings() -> None:
    assert describe("a.py", PYTHON).headings == ("A vessel with a timetable.", "Ties it up.")


NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "source": ["# Tides of 1900\n", "text\n", "## Neap"]},
            {
                "cell_type": "code",
                "source": "def ebb(x):\n    return 'low'",
                "outputs": [{"text": "# not this"}],
            },
            {"cell_type": "raw", "source": 7},
            "no cell",
        ]
    }
)
DOCUMENTS = [
    (
        "a.md",
        "# The *sea*\n\nwaves\n\n```sh\n# no heading\n```\n## [Wind](w.md) ##\n\nUnder\n-----\nfoam\n",
        Description("markdown", "The sea", ("Wind", "Under")),
    ),
    (
        "a.md",
        "---\ntitle: 'Salt'\nsecret: x\n---\n# Brine\n",
        Description("markdown", "Salt", ("Brine",)),
    ),
    (
        "a.rst",
        "====\nReef\n====\n\ntext text\n\nFish ``kinds``\n--------------\n\n  code\n  ----\n",
        Description("restructuredtext", "Reef", ("Fish kinds",)),
    ),
    (
        "a.html",
        "<title>Shells &amp; sand</title><!-- <h1>no</h1> --><script>'<h1>no</h1>'</script><h2 class=x>Two <b>kinds</b></h2>",
        Description("html", "Shells & sand", ("Two kinds",)),
    ),
    ("a.ipynb", NOTEBOOK, Description("notebook", "Tides of 1900", ("Neap",), ("ebb",))),
    ("a.ipynb", "{broken", Description("notebook")),
    (
        "a.csv",
        'port,"tons, gross",year\nRiga,3,1999\n',
        Description("csv", names=("port", "tons, gross", "year")),
    ),
    ("a.csv", "port;tons\nRiga;3\n", Description("csv", names=("port", "tons"))),
    ("a.csv", "Riga,3,1999\nOslo,4,2000\n", Description("csv")),
    ("a.tsv", "port\ttons\n", Description("tsv", names=("port", "tons"))),
    (
        "a.json",
        '{"name": "x", "ports": {"inner": 1}, "list": ["value", {"deep": 2}]}',
        Description("json", names=("name", "ports", "list")),
    ),
    ("a.json", '[{"id": 1}, {"id": 2, "tag": "t"}]', Description("json", names=("id", "tag"))),
    ("a.json", '"only a string"', Description("json")),
    (
        "a.toml",
        'x = "secret"\n[tool.crane]\ny = ["a",\n  ["b"],\n]\n[[berth]]\n',
        Description("toml", names=("tool.crane", "berth")),
    ),
    ("a.ini", "key = value\nother: value\n", Description("ini", names=("key", "other"))),
    ("a.yaml", "ports:\n  - inner: 1\nowner: me\n", Description("yaml", names=("ports", "owner"))),
    (
        "a.sql",
        "-- CREATE TABLE no\nCREATE TABLE IF NOT EXISTS ship (id INT);\ncreate or replace view \"fleet\" as select 'x';",
        Description("sql", names=("ship", "fleet")),
    ),
    (
        "a.xml",
        "<?xml version='1.0'?><!-- <no/> --><cargo><box>7</box></cargo>",
        Description("xml", names=("cargo",)),
    ),
    (
        "a.xml",
        '<task type="atomic" name="weigh"><description>Weighs <<x>> it</description><instructions>secret</instructions></task>',
        Description("template", names=("weigh",)),
    ),
    (
        "a.xml",
        '<library><task name="weigh"><description>Weighs it</description></task><task name="pack"><description>Packs\n it</description></task></library>',
        Description("template", "Weighs it", ("Packs it",), ("weigh", "pack")),
    ),
    ("id_rsa", "-----BEGIN KEY-----\nabc\n", Description("")),
    ("notes.txt", "# a line\nof text", Description("")),
]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    DOCUMENTS,
    ids=[f"{row[0]}-{i}" for i, row in enumerate(DOCUMENTS)],
)
def test_documents_and_data_are_described_by_their_headings_and_keys(
    path: str, text: str, expected: Description
) -> None:
    assert describe(path, text) == expected


HOSTILE = [
    ("a.html", "<!--" * 100_000),
    ("a.html", "<script>" * 50_000),
    ("a.html", "<title>" * 50_000),
    ("a.sql", "/*" * 200_000),
    ("a.sql", "CREATE " * 60_000),
    ("a.xml", "<![CDATA[" * 40_000),
    ("a.xml", "<" * 400_000),
    ("a.json", '"\\' * 200_000),
    ("a.json", "[" * 400_000),
    ("a.json", '{"a":' * 80_000),
    ("a.ini", "[ " * 200_000),
    ("a.ini", ("[" + " " * 150 + "\n") * 2_600),
    ("a.md", "#" * 400_000),
    ("a.md", "# [a](" * 60_000),
    ("a.csv", ",".join(f"column{n}" for n in range(200_000))),
    ("a.csv", '"' * 400_000),
    ("a.ipynb", '{"cells":' + "[" * 100_000),
    ("a.ipynb", json.dumps({"cells": [{}] * 200_000})),
    ("a.ipynb", '{"cells": [{"cell_type": "markdown", "source": "# \\ud800 x"}]}'),
    ("a.js", "a" * 4_000_000),
    ("a.js", "\n".join(" a(" + "b" * 190 for _ in range(2_000))),
    ("a.c", "a " * 200_000),
    ("a.c", "\n".join("a*" * 99 for _ in range(2_000))),
    ("a.java", "\n".join(" public" * 28 for _ in range(2_000))),
    ("a.py", "(" * 400_000),
    ("a.py", "x" + ".y" * 70_000),
    ("a.py", "-" * 140_000 + "1"),
    ("a.py", "def " * 60_000),
]


@pytest.mark.parametrize(
    ("path", "text"), HOSTILE, ids=[f"{row[0]}-{i}" for i, row in enumerate(HOSTILE)]
)
@pytest.mark.timeout(20)
def test_no_file_makes_a_describer_run_long_or_return_much(path: str, text: str) -> None:
    found = describe(path, text)
    assert len(found.headings) <= MAX_ITEMS and len(found.names) <= MAX_ITEMS
    assert len(found.summary) + sum(map(len, found.headings)) + sum(map(len, found.names)) <= 12_200
    " ".join((found.summary, *found.headings, *found.names)).encode()


@given(
    st.sampled_from(
        [
            "a.py",
            "a.md",
            "a.rst",
            "a.html",
            "a.ipynb",
            "a.csv",
            "a.json",
            "a.toml",
            "a.sql",
            "a.xml",
            "a.ts",
            "a.c",
            "a",
        ]
    ),
    st.text(alphabet="abAB \t\n#=-\"'`<>/[]{}(),;:\\*!é\ud800\x00", max_size=200),
)
def test_any_text_is_described(path: str, text: str) -> None:
    found = describe(path, text)
    assert all(
        item and item == item.strip() and "\n" not in item
        for item in (*found.headings, *found.names)
    )
