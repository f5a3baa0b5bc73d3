"""Answers that models could write, with their only sensible reading; the fifth table, by an author of its own.

Its kinds of defect are those that users of other applications report. Its author had seen neither the parser nor the
other tables.
"""

from __future__ import annotations

from typing import Any

# ---- schema helpers -------------------------------------------------------------------------------------------------
S: dict = {"type": "string"}
INT: dict = {"type": "integer"}
N: dict = {"type": "number"}
B: dict = {"type": "boolean"}


def arr(items: dict, **more: Any) -> dict:
    return {"type": "array", "items": items, **more}


def enum(*values: str) -> dict:
    return {"type": "string", "enum": list(values)}


def obj(required: Any = None, **props: Any) -> dict:
    """An object; every property is required unless `required` says which."""
    return {
        "type": "object",
        "properties": props,
        "required": list(props) if required is None else list(required),
    }


def opt(schema: dict) -> dict:
    return {"anyOf": [schema, {"type": "null"}]}


# ---- PLAIN ----------------------------------------------------------------------------------------------------------
PLAIN: list[tuple[str, Any]] = [
    # -- wrappers: fences, prose, labels, tokens
    ('```json\n{"ferry": "Aurelia", "decks": 5}\n```', {"ferry": "Aurelia", "decks": 5}),
    ('```\n[{"bin": "glass"}, {"bin": "paper"}]\n```', [{"bin": "glass"}, {"bin": "paper"}]),
    ('```JSON\n{"kiln": 3, "cone": "06"}\n```', {"kiln": 3, "cone": "06"}),
    (
        'Of course! I went through the receipt and here is what I found:\n\n```json\n{\n  "shop": "Nordvik Tools",\n  "items": 4\n}\n```\n\n'
        "Shall I also compute the tax for you?",
        {"shop": "Nordvik Tools", "items": 4},
    ),
    (
        'Here\'s the record you asked for: {"bee_yard": "north slope", "hives": 12}',
        {"bee_yard": "north slope", "hives": 12},
    ),
    (
        '{"invoice": "LX-88", "net": 310.4}\n\nNote: the amount excludes the deposit that was paid in May.',
        {"invoice": "LX-88", "net": 310.4},
    ),
    (
        'Taking the group {oak, elm, ash} from your message into account, the update is: {"tree": "elm", "height_m": 9}',
        {"tree": "elm", "height_m": 9},
    ),
    (
        'I called `count_rows()` on the second sheet and got {"rows": 88, "sheet": "B"}',
        {"rows": 88, "sheet": "B"},
    ),
    (
        '## Result\n\n**Extracted fields**\n\n{"plate": "KR-204", "color": "teal"}',
        {"plate": "KR-204", "color": "teal"},
    ),
    (
        'As stated in [1] and confirmed by [3], the outcome is {"confirmed": true, "sources": 2}',
        {"confirmed": True, "sources": 2},
    ),
    (
        '[{"id": 7, "job": "mow"}]\n\nThe steps for this are described in [the garden handbook].',
        [{"id": 7, "job": "mow"}],
    ),
    ("[]\n\nNone of the listings matched your filters.", []),
    (
        'json\n{"context_fit": 0.5, "reason": "partly covered"}',
        {"context_fit": 0.5, "reason": "partly covered"},
    ),
    ('```\njson\n{"lane": 2, "open": false}\n```', {"lane": 2, "open": False}),
    (
        'ANSWER\n======\n```json\n{"step": "lookup", "term": "tide table"}\n``',
        {"step": "lookup", "term": "tide table"},
    ),
    (
        'My mistake, this should be better: ```{"task": "archive", "folder": "2021"}```',
        {"task": "archive", "folder": "2021"},
    ),
    ('`{"toggle": "on", "room": "attic"}`', {"toggle": "on", "room": "attic"}),
    (
        '1. The list you wanted:\n\n   ```json\n   {\n     "soups": ["leek", "pea"]\n   }\n   ```\n\n2. Nothing else is needed.',
        {"soups": ["leek", "pea"]},
    ),
    (
        'First install the client:\n```bash\npip install tidegauge\n```\nthen use this configuration:\n```json\n{"port": 8125, "retries": 2}\n```',
        {"port": 8125, "retries": 2},
    ),
    (
        'Do not send {"dose": 0}; send this instead:\n```json\n{"dose": 15}\n```\nA body like {"dose": null} would be rejected.',
        {"dose": 15},
    ),
    (
        'My first idea was {"total": 40}, but that forgets the second guest. The corrected answer: {"total": 65}',
        {"total": 65},
    ),
    (
        "```python\nresult = {'berth': 14, 'paid': True, 'notes': [None, 'late']}\n```",
        {"berth": 14, "paid": True, "notes": [None, "late"]},
    ),
    (
        '```javascript\nconst settings = {\n  theme: "dusk",\n  columns: 3,\n};\n```',
        {"theme": "dusk", "columns": 3},
    ),
    (
        '```jsonc\n{\n  // shown in the footer\n  "owner": "Mirela",\n  "year": 2018\n}\n```',
        {"owner": "Mirela", "year": 2018},
    ),
    (
        '```json\n{"action": "answer", "text": "Run this:\\n```sh\\nmake all\\n```\\nand wait."}\n```',
        {"action": "answer", "text": "Run this:\n```sh\nmake all\n```\nand wait."},
    ),
    (
        '{"hint": "write ```yaml at the top of the block", "level": 1}',
        {"hint": "write ```yaml at the top of the block", "level": 1},
    ),
    ('{"tip": "call `sorted` twice"}', {"tip": "call `sorted` twice"}),
    ('{"stop": "Elm St", "line": 9}<|im_end|>', {"stop": "Elm St", "line": 9}),
    ('{"volume": 11, "unit": "dB"}</s>', {"volume": 11, "unit": "dB"}),
    (
        '[TOOL_CALLS][{"name": "get_rate", "arguments": {"pair": "SEK/NOK"}}]',
        [{"name": "get_rate", "arguments": {"pair": "SEK/NOK"}}],
    ),
    (
        'I will look that up.\n<tool_call>\n{"name": "find_route", "arguments": {"to": "harbour"}}\n</tool_call>',
        {"name": "find_route", "arguments": {"to": "harbour"}},
    ),
    (
        'Thought: I should check the stock first.\nAction: stock_lookup\nAction Input: {"sku": "QT-17", "warehouse": "east"}\nObservation:',
        {"sku": "QT-17", "warehouse": "east"},
    ),
    (
        'Final Answer: {"winner": "team violet", "margin": 3}',
        {"winner": "team violet", "margin": 3},
    ),
    ('{"mood": "calm"}\n\n\n\n   \t\n\n\n', {"mood": "calm"}),
    ('\ufeff{"sensor": "S4", "ok": true}', {"sensor": "S4", "ok": True}),
    (
        '{"a_side": "Lighthouse",\r\n "b_side": "Kelp"\r\n}\r\n',
        {"a_side": "Lighthouse", "b_side": "Kelp"},
    ),
    # -- reasoning
    (
        '<think>\nThe user wants one object. Keep it short.\n</think>\n\n{"verdict": "keep"}',
        {"verdict": "keep"},
    ),
    (
        '<think>\nMaybe {"verdict": "drop", "score": 2}? No, the second photo shows the stamp.\n</think>\n{"verdict": "keep", "score": 8}',
        {"verdict": "keep", "score": 8},
    ),
    (
        '<think>\n\n</think>\n\n```json\n{"steps": ["soak", "rinse"]}\n```',
        {"steps": ["soak", "rinse"]},
    ),
    (
        'Okay, so the person asks about the tram. The last one leaves at 23:40.\n</think>\n\n{"last_tram": "23:40"}',
        {"last_tram": "23:40"},
    ),
    (
        '<thinking>I could return [1, 2] but the question asks for names.</thinking>\n["Orla", "Piet"]',
        ["Orla", "Piet"],
    ),
    (
        '{"template": "<think>plan</think> then speak", "lang": "en"}',
        {"template": "<think>plan</think> then speak", "lang": "en"},
    ),
    # -- quotes
    ("{'room': 'B12', 'seats': 30}", {"room": "B12", "seats": 30}),
    (
        "{\"tasks\": [{'content': 'paint the fence', 'done': False}, {'content': 'oil the gate', 'done': True}]}",
        {
            "tasks": [
                {"content": "paint the fence", "done": False},
                {"content": "oil the gate", "done": True},
            ]
        },
    ),
    (r"{'motto': 'it\'s only rain', 'n': 1}", {"motto": "it's only rain", "n": 1}),
    (
        "{'advice': 'don't lean on the rail', 'floor': 2}",
        {"advice": "don't lean on the rail", "floor": 2},
    ),
    ("{'guest': \"Maeve O'Dowd\", 'vip': None}", {"guest": "Maeve O'Dowd", "vip": None}),
    (
        "{'line': 'None of this is True', 'checked': None}",
        {"line": "None of this is True", "checked": None},
    ),
    (
        '{"review": "My aunt called it "a small miracle" twice", "stars": 5}',
        {"review": 'My aunt called it "a small miracle" twice', "stars": 5},
    ),
    (
        '{"headline": "The new café is named "Sugar Fox"", "year": 2020}',
        {"headline": 'The new café is named "Sugar Fox"', "year": 2020},
    ),
    (
        '{"markup": "<a href="/basket">Basket</a>", "visible": true}',
        {"markup": '<a href="/basket">Basket</a>', "visible": True},
    ),
    ("{“station”: “Myrdal”, “platform”: 2}", {"station": "Myrdal", "platform": 2}),
    ('{"quote": "she wrote “soon” on the card"}', {"quote": "she wrote “soon” on the card"}),
    ('{"城市"："杭州"，"桥梁"：18}', {"城市": "杭州", "桥梁": 18}),
    ('{"first": "Ann, "last": "Lee"}', {"first": "Ann", "last": "Lee"}),
    ('{"first": Olle", "last": "Berg"}', {"first": "Olle", "last": "Berg"}),
    ('{"shade: "ochre", "coats": 2}', {"shade": "ochre", "coats": 2}),
    ('{shade": "umber", "coats": 3}', {"shade": "umber", "coats": 3}),
    (r"{\"town\": \"Vik\", \"buses\": 3}", {"town": "Vik", "buses": 3}),
    (r'{"greeting": \"good evening\", "lang": "en"}', {"greeting": "good evening", "lang": "en"}),
    (
        '{"script": """for x in range(3):\n    print("lap", x)""", "lang": "python"}',
        {"script": 'for x in range(3):\n    print("lap", x)', "lang": "python"},
    ),
    (
        '{"sql": `SELECT name FROM boats`, "limit": 20}',
        {"sql": "SELECT name FROM boats", "limit": 20},
    ),
    # -- bare words
    ('{lamp: "brass", watts: 40}', {"lamp": "brass", "watts": 40}),
    ("{status: active, retries: 3}", {"status": "active", "retries": 3}),
    ('{"borough": Upper Marsh, "wards": 6}', {"borough": "Upper Marsh", "wards": 6}),
    (r'{"plan": F:\Plans\Week.txt, "open": true}', {"plan": r"F:\Plans\Week.txt", "open": True}),
    (
        '{"link": https://example.org/maps?id=4, "zoom": 7}',
        {"link": "https://example.org/maps?id=4", "zoom": 7},
    ),
    ('{"due": 2031-04-09, "rank": 1}', {"due": "2031-04-09", "rank": 1}),
    ('{"load": 10 kg, "wheels": 2}', {"load": "10 kg", "wheels": 2}),
    ('{"growth": 12%, "quarter": 3}', {"growth": "12%", "quarter": 3}),
    (
        '{"gate": None, "locked": True, "alarm": False}',
        {"gate": None, "locked": True, "alarm": False},
    ),
    ('{"middle_name": undefined, "age": 52}', {"middle_name": None, "age": 52}),
    ('{"ok": TRUE, "warn": FALSE, "extra": NULL}', {"ok": True, "warn": False, "extra": None}),
    ('{1: "gold", 2: "silver"}', {"1": "gold", "2": "silver"}),
    ('{"corner": (4, 9), "label": "NE"}', {"corner": [4, 9], "label": "NE"}),
    # -- commas, brackets, comments
    ('{"brand": "Korv & Co", "shops": 27,}', {"brand": "Korv & Co", "shops": 27}),
    ('["hinge", "latch", ]', ["hinge", "latch"]),
    (
        '{"rule": "ends with a, }", "more": ["x, ]",],}',
        {"rule": "ends with a, }", "more": ["x, ]"]},
    ),
    (
        '{\n  "bank": "Fjord Trust"\n  "branch": "West"\n  "desk": 4\n}',
        {"bank": "Fjord Trust", "branch": "West", "desk": 4},
    ),
    ('[{"p": 1} {"p": 2}\n{"p": 3}]', [{"p": 1}, {"p": 2}, {"p": 3}]),
    ('{"birds": [\n  "wren"\n  "tit"\n  "crow"\n]}', {"birds": ["wren", "tit", "crow"]}),
    (
        '{"note": "Pack the lamp "\n         "in old paper.", "box": 8}',
        {"note": "Pack the lamp in old paper.", "box": 8},
    ),
    (
        '{\n  "width": 80, // measured at the base\n  "depth": 35  // don\'t count the {handle}\n}',
        {"width": 80, "depth": 35},
    ),
    (
        '{"crew": ["Ulf", /* on leave: "Siv", */ "Tor"], "ship": "Brisa"}',
        {"crew": ["Ulf", "Tor"], "ship": "Brisa"},
    ),
    ('{\n  "retries": 4,  # per host\n  "color": "#ffcc00"\n}', {"retries": 4, "color": "#ffcc00"}),
    (
        '{"home": "https://example.net//x", // public\n "glob": "src/*/main.c", }',
        {"home": "https://example.net//x", "glob": "src/*/main.c"},
    ),
    (
        '{"jobs": [{"kind": "weld", "spec": {"seam": "lap"}]}',
        {"jobs": [{"kind": "weld", "spec": {"seam": "lap"}}]},
    ),
    ('{"ids": [4, 5, 6}', {"ids": [4, 5, 6]}),
    (
        '{"tool": "dim_light", "input": {"room": "study", "pct": 20}',
        {"tool": "dim_light", "input": {"room": "study", "pct": 20}},
    ),
    ('{"pier": "C", "slots": 12}}', {"pier": "C", "slots": 12}),
    ('{{"style": "gothic", "arches": 7}}', {"style": "gothic", "arches": 7}),
    ('"pet": "ferret", "age": 3}', {"pet": "ferret", "age": 3}),
    (r'{"song": "Heron", \n"bars": \n[8, 16]\n}', {"song": "Heron", "bars": [8, 16]}),
    (
        'Write this to the log: {"message": "} and { are fine here"}',
        {"message": "} and { are fine here"},
    ),
    # -- inside of strings
    (
        '{"reason": "The crate was wet.\nThe label came off.", "lost": 1}',
        {"reason": "The crate was wet.\nThe label came off.", "lost": 1},
    ),
    ('{"row": "left\tright", "n": 2}', {"row": "left\tright", "n": 2}),
    (
        '{"code": "def hi():\n    return \\"hej\\"\n", "lines": 2}',
        {"code": 'def hi():\n    return "hej"\n', "lines": 2},
    ),
    (
        r'{"formula": "\alpha + \gamma = \pi", "id": 3}',
        {"formula": r"\alpha + \gamma = \pi", "id": 3},
    ),
    (
        r'{"path": "C:\Projects\Atlas\main.c", "ok": true}',
        {"path": r"C:\Projects\Atlas\main.c", "ok": True},
    ),
    ('{"target": "D:\\Exports\\", "keep": 5}', {"target": "D:\\Exports\\", "keep": 5}),
    (
        r'{"dish": "cr\u00eape", "face": "\ud83d\ude00", "url": "a\/b"}',
        {"dish": "crêpe", "face": "😀", "url": "a/b"},
    ),
    (
        '{"ticket": 98765432109876543210, "zip": "04109"}',
        {"ticket": 98765432109876543210, "zip": "04109"},
    ),
    # -- cut off
    ('{"summary": "The pump was repla', {"summary": "The pump was repla"}),
    ('{"lot": 4, "price": 129', {"lot": 4}),
    ('{"lot": "A7", "seller": "Iben", "remar', {"lot": "A7", "seller": "Iben"}),
    ('{"lot": "A8", "bids":', {"lot": "A8"}),
    ('[{"id": 1, "t": "fern"}, {"id": 2, "t": "mo', [{"id": 1, "t": "fern"}, {"id": 2, "t": "mo"}]),
    ('{"depths": [10, 20, 3', {"depths": [10, 20]}),
    (
        '```json\n{"rooms": [{"nr": "101", "beds": 2}, {"nr": "102", "beds": 1},',
        {"rooms": [{"nr": "101", "beds": 2}, {"nr": "102", "beds": 1}]},
    ),
    ('{"level": "high",\n\n\n\n\n            \n\n', {"level": "high"}),
    # -- several defects at once
    (
        "Sure thing!\n```json\n{\n  name: 'Tove', // first name only\n  'tags': ['new', 'north',],\n  \"active\": True,\n}\n```\nHave a nice day!",
        {"name": "Tove", "tags": ["new", "north"], "active": True},
    ),
]


# ---- TYPED ----------------------------------------------------------------------------------------------------------
_SENT = enum("positive", "negative", "neutral")
_LETTER = enum("A", "B", "C", "D")

TYPED: list[tuple[str, Any, Any]] = [
    # -- numbers
    ("The answer is 42.", "integer", 42),
    ("Points: 64", "integer", 64),
    ("**17**", "integer", 17),
    ("```\n256\n```", "integer", 256),
    ("<think>There were 7 boats, then one more came.</think>8", "integer", 8),
    ("The grand total comes to €2,450.75", "number", 2450.75),
    (r"So the length of the side is $\boxed{12.5}$.", "number", 12.5),
    ("We add both crates.\n\n#### 72", "integer", 72),
    ('{"age": "34", "name": "Runa"}', obj(age=INT, name=S), {"age": 34, "name": "Runa"}),
    (
        '{"grade": "00.40", "remark": "half of the parts"}',
        obj(grade=N, remark=S),
        {"grade": 0.4, "remark": "half of the parts"},
    ),
    ('{"revenue": "1,234,567"}', obj(revenue=N), {"revenue": 1234567}),
    ('{"price": "$49.90", "sku": "M2"}', obj(price=N, sku=S), {"price": 49.9, "sku": "M2"}),
    ('{"delta": "-12.5"}', obj(delta=N), {"delta": -12.5}),
    (
        '{"lines": [{"qty": "2", "item": "rope"}, {"qty": "11", "item": "cleat"}]}',
        obj(lines=arr(obj(qty=INT, item=S))),
        {"lines": [{"qty": 2, "item": "rope"}, {"qty": 11, "item": "cleat"}]},
    ),
    (
        '{"apples": "3", "plums": "9"}',
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"apples": 3, "plums": 9},
    ),
    ('["4", "8", "15"]', arr(INT), [4, 8, 15]),
    ('{"floor": "7"}', obj(floor=opt(INT)), {"floor": 7}),
    ('{"ref": "12"}', obj(ref={"anyOf": [INT, S]}), {"ref": "12"}),
    ('{"pin": "0071"}', obj(pin=S), {"pin": "0071"}),
    (
        '{"tank": {"litres": "80"}}',
        {
            "type": "object",
            "properties": {"tank": {"$ref": "#/$defs/Tank"}},
            "required": ["tank"],
            "$defs": {
                "Tank": {
                    "type": "object",
                    "properties": {"litres": {"type": "integer"}},
                    "required": ["litres"],
                }
            },
        },
        {"tank": {"litres": 80}},
    ),
    # -- booleans
    ("Yes.", "boolean", True),
    ("Verdict: **False**", "boolean", False),
    (
        "<think>The first date is wrong but the name matches, so yes? Hmm, the rule needs both.</think>\nNo",
        "boolean",
        False,
    ),
    ('{"valid": "true"}', obj(valid=B), {"valid": True}),
    (
        '{"relevant": "No", "why": "other city"}',
        obj(relevant=B, why=S),
        {"relevant": False, "why": "other city"},
    ),
    (
        '{"COMMENT": "The seal is broken.", "DAMAGED": "True"}',
        obj(COMMENT=S, DAMAGED=B),
        {"COMMENT": "The seal is broken.", "DAMAGED": True},
    ),
    (
        "{'spam': True, 'reviewed': False}",
        obj(spam=B, reviewed=B),
        {"spam": True, "reviewed": False},
    ),
    ('{"answer": "yes"}', obj(answer=S), {"answer": "yes"}),
    # -- enums
    ('{"sentiment": "POSITIVE"}', obj(sentiment=_SENT), {"sentiment": "positive"}),
    (
        '{"status": "In Progress", "id": 6}',
        obj(status=enum("todo", "in_progress", "done"), id=INT),
        {"status": "in_progress", "id": 6},
    ),
    (r'{"layout": "\"grid\""}', obj(layout=enum("rows", "grid")), {"layout": "grid"}),
    ("The tone of this letter is **negative**.", _SENT, "negative"),
    ("Category: Billing", enum("billing", "shipping", "returns"), "billing"),
    (
        "Label: spam\nReason: it asks for a password on a page with a strange address.",
        enum("spam", "ham"),
        "spam",
    ),
    ('"Neutral"', _SENT, "neutral"),
    ("```\nlow-risk\n```", enum("LOW_RISK", "HIGH_RISK"), "LOW_RISK"),
    ("Very good!", enum("good", "very_good", "poor"), "very_good"),
    ("ANSWER: $D$", _LETTER, "D"),
    ("The second law rules out the other options.\n\nANSWER: **C**", _LETTER, "C"),
    ("Choice: (B)", _LETTER, "B"),
    (r"\boxed{\text{A}}", _LETTER, "A"),
    (
        '{"tags": ["URGENT", "Legal"]}',
        obj(tags=arr(enum("urgent", "legal", "press"))),
        {"tags": ["urgent", "legal"]},
    ),
    (
        '{"severity": "Severity: High."}',
        obj(severity=enum("low", "medium", "high")),
        {"severity": "high"},
    ),
    (
        '{"valve": "Closed"}',
        obj(valve={"anyOf": [enum("open", "closed"), enum("missing")]}),
        {"valve": "closed"},
    ),
    ('{"season": null}', obj(season=opt(enum("spring", "autumn"))), {"season": None}),
    # -- JSON in a string
    (r'{"colors": "[\"rust\", \"slate\"]"}', obj(colors=arr(S)), {"colors": ["rust", "slate"]}),
    (
        r'{"plant": "fern", "care": "{\"light\": \"shade\", \"days\": 3}"}',
        obj(plant=S, care={"type": "object"}),
        {"plant": "fern", "care": {"light": "shade", "days": 3}},
    ),
    (
        r'"{\"keyword\": \"moss\", \"max\": 10}"',
        obj(keyword=S, max=INT),
        {"keyword": "moss", "max": 10},
    ),
    ("{\"labels\": \"['home', 'garden']\"}", obj(labels=arr(S)), {"labels": ["home", "garden"]}),
    (
        r'{"todos": [{"t": "sweep"}, "{\"t\": \"mop\"}"]}',
        obj(todos=arr(obj(t=S))),
        {"todos": [{"t": "sweep"}, {"t": "mop"}]},
    ),
    (
        r'{"name": "search", "arguments": "{\"q\": \"oolong tea\"}"}',
        obj(name=S, arguments=obj(q=S)),
        {"name": "search", "arguments": {"q": "oolong tea"}},
    ),
    (r'{"payload": "{\"a\": 1}"}', obj(payload=S), {"payload": '{"a": 1}'}),
    # -- several values
    (
        '{"kid": "Asta", "age": 6}\n{"kid": "Bo", "age": 8}\n{"kid": "Cai", "age": 7}',
        arr(obj(kid=S, age=INT)),
        [{"kid": "Asta", "age": 6}, {"kid": "Bo", "age": 8}, {"kid": "Cai", "age": 7}],
    ),
    ('{"cmd": "ls"}{"cmd": "pwd"}', arr(obj(cmd=S)), [{"cmd": "ls"}, {"cmd": "pwd"}]),
    ('{"nut": "hazel"},\n{"nut": "pecan"}', arr(obj(nut=S)), [{"nut": "hazel"}, {"nut": "pecan"}]),
    (
        '{"rack": 5, "slot": 18}{"rack": 5, "slot": 18}',
        obj(rack=INT, slot=INT),
        {"rack": 5, "slot": 18},
    ),
    (
        '```json\n{"city": "Turku", "temp": 4}\n```\nYou can post it like this:\n```json\n{"headers": {"Accept": "*/*"}}\n```',
        obj(city=S, temp=INT),
        {"city": "Turku", "temp": 4},
    ),
    (
        'For example {"word": "...", "count": 0}.\n\nThe result for your text:\n{"word": "kelp", "count": 12}',
        obj(word=S, count=INT),
        {"word": "kelp", "count": 12},
    ),
    (
        '<think>\nDraft: {"word": "reef", "count": 1}\n</think>\n{"word": "sand", "count": 2}',
        obj(word=S, count=INT),
        {"word": "sand", "count": 2},
    ),
    (
        'Here are the names: ["Elin", "Noor"]. Let me know if you need the ages.',
        arr(S),
        ["Elin", "Noor"],
    ),
    ("- cedar\n- larch\n- rowan", "string[]", ["cedar", "larch", "rowan"]),
    (
        "1. Measure the wall\n2. Cut the boards\n3. Sand the edges",
        "string[]",
        ["Measure the wall", "Cut the boards", "Sand the edges"],
    ),
    # -- optional, null, extra
    ('{"name": "Kaj"}', obj(["name"], name=S, phone=S), {"name": "Kaj"}),
    ('{"name": "Kaj", "phone": None}', obj(name=S, phone=opt(S)), {"name": "Kaj", "phone": None}),
    ('{"name": "Kaj", "phone": "N/A"}', obj(name=S, phone=opt(S)), {"name": "Kaj", "phone": "N/A"}),
    (
        '{"mill": "north", "built": 1880, "comment": "roof is new"}',
        obj(mill=S, built=INT),
        {"mill": "north", "built": 1880, "comment": "roof is new"},
    ),
    # -- syntax with schema
    (
        r'{"dir": "C:\Data\Weekly", "depth": "2"}',
        obj(dir=S, depth=INT),
        {"dir": r"C:\Data\Weekly", "depth": 2},
    ),
    (
        '{"criteria": "be brief\nbe kind", "weight": 0.5}',
        obj(criteria=S, weight=N),
        {"criteria": "be brief\nbe kind", "weight": 0.5},
    ),
    (
        'Action Input: {"skill": "knots", "hours": 3} \nThis should give me the plan.',
        obj(skill=S, hours=INT),
        {"skill": "knots", "hours": 3},
    ),
    ("{'petals': 5, 'scented': True", obj(petals=INT, scented=B), {"petals": 5, "scented": True}),
    # -- cut off
    (
        '{"title": "Tides", "body": "Twice a day the wat',
        obj(title=S, body=S),
        {"title": "Tides", "body": "Twice a day the wat"},
    ),
    ('{"title": "Moons", "pages": 21', obj(["title"], title=S, pages=INT), {"title": "Moons"}),
    (
        '[{"n": "ruby", "h": 9}, {"n": "opal", "h": 6}, ',
        arr(obj(n=S, h=INT)),
        [{"n": "ruby", "h": 9}, {"n": "opal", "h": 6}],
    ),
    ("[1, 2, 3", arr(INT), [1, 2]),
]


# ---- XML ------------------------------------------------------------------------------------------------------------
XML: list[tuple[str, Any]] = [
    ("<answer>B</answer>", {"answer": "B"}),
    ("<fleet><van>blue</van><van>white</van></fleet>", {"fleet": {"van": ["blue", "white"]}}),
    (
        "\n\n  <trip><from>Bergen</from><to>Voss</to></trip>  \n",
        {"trip": {"from": "Bergen", "to": "Voss"}},
    ),
    (
        "Here is the list in XML:\n\n```xml\n<shelf>\n  <jar>salt</jar>\n  <jar>dill</jar>\n  <owner>Kim</owner>\n</shelf>\n```",
        {"shelf": {"jar": ["salt", "dill"], "owner": "Kim"}},
    ),
    (
        '<?xml version="1.0" encoding="UTF-8"?>\n<clock><hour>7</hour><minute>05</minute></clock>',
        {"clock": {"hour": "7", "minute": "05"}},
    ),
    (
        "<firm><name>Rook & Daughters</name><city>Leith</city></firm>",
        {"firm": {"name": "Rook & Daughters", "city": "Leith"}},
    ),
    (
        "<firm><name>Moss &amp; Fern</name><rule>a &lt; b</rule></firm>",
        {"firm": {"name": "Moss & Fern", "rule": "a < b"}},
    ),
    (
        "<edit><file>loop.c</file><code><![CDATA[if (a < b && c > d) { run(); }]]></code></edit>",
        {"edit": {"file": "loop.c", "code": "if (a < b && c > d) { run(); }"}},
    ),
    (
        "<check><rule>load < 40</rule><ok>yes</ok></check>",
        {"check": {"rule": "load < 40", "ok": "yes"}},
    ),
    (
        "<think>The user wants a city & a country, size < 3 lines.</think>\n<place><city>Graz</city><country>Austria</country></place>",
        {"place": {"city": "Graz", "country": "Austria"}},
    ),
    (
        "<report><title>Dry dock</title><body>The hull was scra",
        {"report": {"title": "Dry dock", "body": "The hull was scra"}},
    ),
    (
        "<pair><left>sun</left><right>moon</right></pair></pair>",
        {"pair": {"left": "sun", "right": "moon"}},
    ),
    (
        "<cast>\n  <!-- only the leads -->\n  <actor>Ines Varga</actor>\n  <actor>Tomas Lund</actor>\n</cast>\nI hope this is what you meant.",
        {"cast": {"actor": ["Ines Varga", "Tomas Lund"]}},
    ),
    (
        "<zoo><animal><name>Otter</name><age>4</age></animal><animal><name>Heron</name><age>2</age></animal></zoo>",
        {"zoo": {"animal": [{"name": "Otter", "age": "4"}, {"name": "Heron", "age": "2"}]}},
    ),
    (
        "<bill><payer>Lo</payer><sum><net>80</net><tax>20</tax></sum>",
        {"bill": {"payer": "Lo", "sum": {"net": "80", "tax": "20"}}},
    ),
]


# ---- REFUSED --------------------------------------------------------------------------------------------------------
REFUSED: list[tuple[str, Any]] = [
    # -- nothing there
    (
        "I'm sorry, but I can't open attachments, so I am unable to fill in the form.",
        obj(name=S, amount=N),
    ),
    ("", obj(name=S)),
    ("```json\n```", obj(name=S)),
    ("<think>\nThe user sent a photo of a boat. I should first find the name on the", obj(boat=S)),
    ('{"error": "quota exceeded"}', obj(title=S, pages=INT)),
    (
        '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}',
        obj(name=S, age=INT),
    ),
    # -- missing
    ('{"name": "Sten"}', obj(name=S, age=INT)),
    ('{"intro": "All groups are listed bel', obj(intro=S, groups=arr(S))),
    ('{"label": "crate", "count": 12', obj(label=S, count=INT)),
    ('[{"id": 1, "name": "ash"}, {"id": 2}]', arr(obj(id=INT, name=S))),
    ('{"name": null, "age": 5}', obj(name=S, age=INT)),
    # -- wrong type
    ('{"seats": 3.7}', obj(seats=INT)),
    ('{"active": 1}', obj(active=B)),
    ('{"zip": 4109}', obj(zip=S)),
    ('{"tags": "red"}', obj(tags=arr(S))),
    ('{"author": ["Li", "Wu"]}', obj(author=S)),
    ('{"address": {"street": "Quay 4"}}', obj(address=S)),
    ('[3, 5, "several"]', arr(INT)),
    ('{"age": "N/A"}', obj(age=INT)),
    # -- numbers and booleans with no single meaning
    ("2,5", "number"),
    ("Somewhere between 10 and 20.", "integer"),
    ("I cannot give a score for this essay.", "number"),
    ("It depends on the weather.", "boolean"),
    ("Yes and no.", "boolean"),
    # -- enums
    ("This message is not toxic.", enum("toxic", "safe")),
    ("It is positive or neutral, hard to tell.", _SENT),
    ("ANSWER: A, B", _LETTER),
    ('{"sentiment": "angry"}', obj(sentiment=_SENT)),
    ('{"sentiment": "positive/negative/neutral"}', obj(sentiment=_SENT)),
    ('{"season": ""}', obj(season=enum("spring", "autumn"))),
    # -- limits of the schema
    ('{"rating": 9}', obj(rating={"type": "integer", "minimum": 1, "maximum": 5})),
]
