"""Answers that models could write, with their only sensible reading; the fourth table, by another author.

The author had not seen the parser. The figures of it before it was changed are in docs/explanation/output.md.
"""

from __future__ import annotations

from typing import Any


def record(props, required=None, **more):
    s = {
        "type": "object",
        "properties": props,
        "required": list(props) if required is None else required,
    }
    s.update(more)
    return s


def A(items, **more):
    s = {"type": "array", "items": items}
    s.update(more)
    return s


def E(*options):
    return {"type": "string", "enum": list(options)}


S = {"type": "string"}
INT = {"type": "integer"}
N = {"type": "number"}
B = {"type": "boolean"}


PLAIN: list[tuple[str, Any]] = [
    # --- the value stands clean, or inside talk and fences
    (
        'Sure! Here is the record you asked for:\n\n```json\n{"boat": "Skua", "length_m": 9}\n```\n\nLet me know if you need anything else!',
        {"boat": "Skua", "length_m": 9},
    ),
    (
        'Based on the note, I would say {"mood": "calm", "energy": 3} describes it best.',
        {"mood": "calm", "energy": 3},
    ),
    ("The sorted sequence is [3, 8, 21].", [3, 8, 21]),
    ("There were no findings, so the list is empty: []", []),
    ('```{"port": 8443}```', {"port": 8443}),
    ('~~~json\n{"gauge": "narrow"}\n~~~', {"gauge": "narrow"}),
    ('````json\n{"snippet": "a fence is ``` here"}\n````', {"snippet": "a fence is ``` here"}),
    ('The result is `{"ok": true, "tries": 2}`.', {"ok": True, "tries": 2}),
    ('json\n{"lake": "Inari", "depth": 92}', {"lake": "Inari", "depth": 92}),
    (
        '```json\n{"museum": "open", "floors": 4}\n\nThis covers everything in the leaflet.',
        {"museum": "open", "floors": 4},
    ),
    ('### Response:\n{"verdict": "late", "days": 5}', {"verdict": "late", "days": 5}),
    ('> {\n>   "tone": "dry",\n>   "score": 4\n> }', {"tone": "dry", "score": 4}),
    ('<pre><code>{"shelf": 12, "row": "C"}</code></pre>', {"shelf": 12, "row": "C"}),
    (
        'HTTP/1.1 200 OK\nContent-Type: application/json\n\n{"queued": 14, "failed": 0}',
        {"queued": 14, "failed": 0},
    ),
    ('\ufeff{"bom": "before me"}', {"bom": "before me"}),
    ('{\r\n  "line": "one",\r\n  "next": "two"\r\n}\r\n', {"line": "one", "next": "two"}),
    (
        '{\u00a0\u00a0"indent":\u00a0"nbsp",\n\u00a0\u00a0"level":\u00a02\n}',
        {"indent": "nbsp", "level": 2},
    ),
    # --- reasoning
    (
        '<think>\nMaybe {"color": "red"}? No, the text says teal.\n</think>\n{"color": "teal"}',
        {"color": "teal"},
    ),
    (
        'The user wants the tide table, low water first.\n</think>\n\n{"low": "04:10", "high": "10:25"}',
        {"low": "04:10", "high": "10:25"},
    ),
    (
        '<thinking>Two rooms, one bath. I should use the key "rooms".</thinking>\n\n```json\n{"rooms": 2, "baths": 1}\n```',
        {"rooms": 2, "baths": 1},
    ),
    (
        '<|channel|>analysis<|message|>Need an object with a town. Could be {"town": "?"}.<|end|><|start|>assistant<|channel|>final<|message|>{"town": "Ghent"}',
        {"town": "Ghent"},
    ),
    ('<|begin_of_box|>{"box": "sealed"}<|end_of_box|>', {"box": "sealed"}),
    (
        '{"explain": "The tag <think> opens the reasoning", "closing": "</think>"}',
        {"explain": "The tag <think> opens the reasoning", "closing": "</think>"},
    ),
    # --- several blocks
    (
        '```json\n{"train": "IC 204", "platform": 7}\n```\nSorry, I misread the board. Here is the corrected version:\n```json\n{"train": "IC 204", "platform": 9}\n```',
        {"train": "IC 204", "platform": 9},
    ),
    ('First draft: {"draft": 1}\nActually, let me fix that: {"draft": 2}', {"draft": 2}),
    (
        '```json\n{"plan": "weekly"}\n```\nYou could also send it compactly, as in {"p": "w"}, but I would not.',
        {"plan": "weekly"},
    ),
    (
        '{"greeting": "Hei"}\n\nNote: I replaced the {name} placeholder from your template.',
        {"greeting": "Hei"},
    ),
    ('{"revenue": "flat"}\n\nSources:\n[1] Quarterly letter, page 3', {"revenue": "flat"}),
    ('{"seed": "barley"}\n\n{"seed": "barley"}', {"seed": "barley"}),
    (
        '{"winner": "Odile"}\n\nUser: Thank you!\nAssistant: You are welcome, have a nice evening.',
        {"winner": "Odile"},
    ),
    # --- Python and JavaScript habits
    (
        "{'active': True, 'parent': None, 'hidden': False}",
        {"active": True, "parent": None, "hidden": False},
    ),
    ("{'pair': ('left', 4), 'kind': 'tuple'}", {"pair": ["left", 4], "kind": "tuple"}),
    ("{'owner': \"O'Hara\", 'title': 'Baker'}", {"owner": "O'Hara", "title": "Baker"}),
    (r"{'reply': 'It\'s fine', 'n': 1}", {"reply": "It's fine", "n": 1}),
    ("{'dish': 'The cook's choice', 'price': 14}", {"dish": "The cook's choice", "price": 14}),
    ("{u'stadt': u'Graz'}", {"stadt": "Graz"}),
    (r"{'pattern': r'\d+-\w', 'flags': 0}", {"pattern": r"\d+-\w", "flags": 0}),
    ('result = {"left": 10, "right": 20}', {"left": 10, "right": 20}),
    (
        'const settings = {\n  theme: "dark",\n  fontSize: 14,\n};',
        {"theme": "dark", "fontSize": 14},
    ),
    ('handleData({"rows": 3});', {"rows": 3}),
    (
        '```python\nimport json\nprint(json.dumps({"sum": 91, "unit": "pt"}))\n```',
        {"sum": 91, "unit": "pt"},
    ),
    (">>> lookup(\"fox\")\n{'legs': 4, 'wild': True}", {"legs": 4, "wild": True}),
    (
        '{"note": """first line\nsecond line""", "n": 2}',
        {"note": "first line\nsecond line", "n": 2},
    ),
    ('{"query": `select 1`, "rows": 1}', {"query": "select 1", "rows": 1}),
    ('{"text": "one long " + "sentence", "parts": 2}', {"text": "one long sentence", "parts": 2}),
    ('{"x": undefined, "y": 4}', {"x": None, "y": 4}),
    ('{"father": nil, "mother": none}', {"father": None, "mother": None}),
    ('{"offset": +3, "factor": .5}', {"offset": 3, "factor": 0.5}),
    ('{"day" => "Monday", "open" => true}', {"day": "Monday", "open": True}),
    ('{"height" = 180, "name" = "Uwe"}', {"height": 180, "name": "Uwe"}),
    # --- punctuation that is missing, doubled, wrong
    ('{"fruits": ["fig", "date",], "total": 2,}', {"fruits": ["fig", "date"], "total": 2}),
    ('{\n  "first": "Ada"\n  "last": "Quist"\n}', {"first": "Ada", "last": "Quist"}),
    ("[[1, 2] [3, 4]]", [[1, 2], [3, 4]]),
    ('[{"id": 1, "v": "a"} {"id": 2, "v": "b"}]', [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]),
    ('{"a": 1,, "b": 2}', {"a": 1, "b": 2}),
    ('{"host": "web1"; "cores": 8}', {"host": "web1", "cores": 8}),
    ('{"speed" 40, "road" "dirt"}', {"speed": 40, "road": "dirt"}),
    ('{"cell": {"row": 2}}}', {"cell": {"row": 2}}),
    ('{"tags": ["new", "sale"}', {"tags": ["new", "sale"]}),
    (
        '{"inner": {"deep": "x", "list": [1, 2]}, "end": "y"',
        {"inner": {"deep": "x", "list": [1, 2]}, "end": "y"},
    ),
    ('{{"template": "braces", "n": 6}}', {"template": "braces", "n": 6}),
    ('"river": "Po", "km": 652}', {"river": "Po", "km": 652}),
    ('{"artist: "Lund", "year": 1988}', {"artist": "Lund", "year": 1988}),
    ('{"shop": Kiosk", "open": true}', {"shop": "Kiosk", "open": True}),
    ('{\n  "drink": "tea,\n  "cups": 2\n}', {"drink": "tea", "cups": 2}),
    ('{""town"": ""Bled"", ""hills"": 3}', {"town": "Bled", "hills": 3}),
    ('{"bird": "wren", "size": "small"]', {"bird": "wren", "size": "small"}),
    # --- words without quotes
    ("{name: Anna Berg, city: Oslo}", {"name": "Anna Berg", "city": "Oslo"}),
    ('{"weight": 12 kg, "origin": "Peru"}', {"weight": "12 kg", "origin": "Peru"}),
    ('{"share": 45%, "of": "votes"}', {"share": "45%", "of": "votes"}),
    ('{"date": 2031-05-09, "kind": "fair"}', {"date": "2031-05-09", "kind": "fair"}),
    ('{"starts": 14:30, "room": 5}', {"starts": "14:30", "room": 5}),
    (
        '{"link": https://example.org/a?b=1#top, "ok": true}',
        {"link": "https://example.org/a?b=1#top", "ok": True},
    ),
    ('{"release": 1.12.3, "stable": true}', {"release": "1.12.3", "stable": True}),
    ("[north, south, east]", ["north", "south", "east"]),
    # --- quotes
    ("{\u201ckey\u201d: \u201cvalue one\u201d, \u201cn\u201d: 2}", {"key": "value one", "n": 2}),
    (
        "{\u201eStra\u00dfe\u201c: \u201eAm Anger\u201c, \u201eHausnummer\u201c: 7}",
        {"Stra\u00dfe": "Am Anger", "Hausnummer": 7},
    ),
    (
        '{"line": "She called it "odd" and left", "page": 8}',
        {"line": 'She called it "odd" and left', "page": 8},
    ),
    ('["He wrote "never"", "She wrote back"]', ['He wrote "never"', "She wrote back"]),
    ('{"code": "print("ready")", "lang": "python"}', {"code": 'print("ready")', "lang": "python"}),
    (r"{\"mode\": \"fast\", \"level\": 2}", {"mode": "fast", "level": 2}),
    (r"{\n  \"cat\": \"Mio\",\n  \"age\": 4\n}", {"cat": "Mio", "age": 4}),
    ("{&quot;plant&quot;: &quot;fern&quot;, &quot;pots&quot;: 3}", {"plant": "fern", "pots": 3}),
    (
        '{"html": "<a href="/start">Start</a>", "ok": true}',
        {"html": '<a href="/start">Start</a>', "ok": True},
    ),
    # --- strings: what is inside stays
    (
        '{"poem": "Leaves fall\nand the yard\nturns brown"}',
        {"poem": "Leaves fall\nand the yard\nturns brown"},
    ),
    ('{"cols": "a\tb", "n": 2}', {"cols": "a\tb", "n": 2}),
    (r'{"formula": "\alpha + \sqrt{2} \cdot \pi"}', {"formula": r"\alpha + \sqrt{2} \cdot \pi"}),
    (r'{"regex": "^\d{3}\s[A-Z]$"}', {"regex": r"^\d{3}\s[A-Z]$"}),
    (r'{"dir": "C:\Daten\Ablage\", "free": true}', {"dir": "C:\\Daten\\Ablage\\", "free": True}),
    (
        r'{"tex": "\\frac{1}{2}", "path": "D:\\new\\table"}',
        {"tex": r"\frac{1}{2}", "path": r"D:\new\table"},
    ),
    (
        '{"css": "a { color: red; } /* keep */", "url": "http://x.test//y # z"}',
        {"css": "a { color: red; } /* keep */", "url": "http://x.test//y # z"},
    ),
    (
        r'{"inner": "{\"k\": [1, 2,]}", "n": "007", "b": "True", "z": "null"}',
        {"inner": '{"k": [1, 2,]}', "n": "007", "b": "True", "z": "null"},
    ),
    (
        '{"padded": "  two spaces each side  ", "empty": ""}',
        {"padded": "  two spaces each side  ", "empty": ""},
    ),
    (
        '```json\n{"readme": "Run:\\n```bash\\nmake all\\n```\\nDone."}\n```',
        {"readme": "Run:\n```bash\nmake all\n```\nDone."},
    ),
    (
        '{"quote": "\u201cTypographic\u201d and \u2018single\u2019", "dash": "\u2014"}',
        {"quote": "\u201cTypographic\u201d and \u2018single\u2019", "dash": "\u2014"},
    ),
    (
        r'{"word": "caf\u00e9", "face": "\ud83d\ude42", "slash": "a\/b"}',
        {"word": "caf\u00e9", "face": "\U0001f642", "slash": "a/b"},
    ),
    (
        '{"": "empty key", "a.b c": 1, "__proto__": {"x": 2}}',
        {"": "empty key", "a.b c": 1, "__proto__": {"x": 2}},
    ),
    (
        '{"account": 12345678901234567890, "tiny": 2.5e-7}',
        {"account": 12345678901234567890, "tiny": 2.5e-7},
    ),
    (
        '{\n  "mail": "Dear Ms Vogt, "\n          "thank you for waiting.",\n  "sent": false\n}',
        {"mail": "Dear Ms Vogt, thank you for waiting.", "sent": False},
    ),
    ('[\n  "salt"\n  "pepper"\n  "thyme"\n]', ["salt", "pepper", "thyme"]),
    # --- comments
    (
        '{\n  "rate": 3, // per hour\n  /* checked twice */\n  "cap": 40 # hard limit\n}',
        {"rate": 3, "cap": 40},
    ),
    # --- languages other than English
    (
        '\u5f53\u7136\uff0c\u7ed3\u679c\u5982\u4e0b\uff1a\n{"\u57ce\u5e02"\uff1a"\u676d\u5dde"\uff0c"\u4eba\u6570"\uff1a30}',
        {"\u57ce\u5e02": "\u676d\u5dde", "\u4eba\u6570": 30},
    ),
    (
        '\u0411\u0435\u0437\u0443\u0441\u043b\u043e\u0432\u043d\u043e! \u0412\u043e\u0442 \u043e\u0442\u0432\u0435\u0442:\n```json\n{"\u0438\u043c\u044f": "\u041e\u043b\u0435\u0433", "\u0441\u0442\u0430\u0436": 6}\n```',
        {"\u0438\u043c\u044f": "\u041e\u043b\u0435\u0433", "\u0441\u0442\u0430\u0436": 6},
    ),
    (
        'Voici la fiche demand\u00e9e :\n{"titre": "L\'\u00e9t\u00e9 \u00ab long \u00bb", "pages": 210}\nBonne lecture !',
        {"titre": "L'\u00e9t\u00e9 \u00ab long \u00bb", "pages": 210},
    ),
    ('{"a": 1\u060c "b": "\u0642\u0644\u0645"}', {"a": 1, "b": "\u0642\u0644\u0645"}),
    # --- wrappers of tool calls and chat templates
    (
        '<tool_call>\n{"name": "set_alarm", "arguments": {"hour": 6}}\n</tool_call>',
        {"name": "set_alarm", "arguments": {"hour": 6}},
    ),
    (
        '[TOOL_CALLS] [{"name": "find_route", "arguments": {"to": "Ulm"}}]',
        [{"name": "find_route", "arguments": {"to": "Ulm"}}],
    ),
    (
        '<function=book_table>{"guests": 5, "time": "19:00"}</function>',
        {"guests": 5, "time": "19:00"},
    ),
    ('{"status": "done", "left": 0}<|im_end|>', {"status": "done", "left": 0}),
    ('<answer>\n{"leader": "Kim", "laps": 12}\n</answer>', {"leader": "Kim", "laps": 12}),
    # --- cut at the end
    (
        '{"title": "Harbour news", "body": "The ferry was late bec',
        {"title": "Harbour news", "body": "The ferry was late bec"},
    ),
    ("[15, 22, 3", [15, 22]),
    ('{"kept": "yes", "unfini', {"kept": "yes"}),
    ('{"kept": "yes", "waiting":', {"kept": "yes"}),
    (
        '```json\n{"people": [{"n": "Ute", "age": 51}, {"n": "Raf',
        {"people": [{"n": "Ute", "age": 51}, {"n": "Raf"}]},
    ),
    ('{"matrix": [[1, 2], [3, 4],', {"matrix": [[1, 2], [3, 4]]}),
    # --- depth
    ("[" * 60 + "7" + "]" * 60, None),
]

_deep: Any = 7
for _ in range(60):
    _deep = [_deep]
PLAIN[-1] = (PLAIN[-1][0], _deep)


PERSON = record({"name": S, "age": INT})
SHAPE = {
    "oneOf": [
        record({"kind": {"const": "circle"}, "radius": N}),
        record({"kind": {"const": "rect"}, "width": N, "height": N}),
    ]
}
EVENT = {
    "anyOf": [
        record({"type": {"const": "login"}, "user": S}),
        record({"type": {"const": "purchase"}, "user": S, "amount": N}),
    ]
}
ITEM = record({"item": S, "qty": INT})
SENT = E("positive", "neutral", "negative")
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": record({"label": S, "children": A({"$ref": "#/$defs/node"})}, ["label"])},
}

TYPED: list[tuple[str, Any, Any]] = [
    # --- integer and number, alone
    ("42", "integer", 42),
    ("There are 17 windows.", "integer", 17),
    ("**Total:** 64", "integer", 64),
    ("1,234,567 inhabitants", "integer", 1234567),
    ("Step 1: 12 * 4 = 48\nStep 2: 48 + 2 = 50\n\nFinal answer: 50", "integer", 50),
    ("We lose 9 of 81 crates.\n#### 72", "integer", 72),
    (r"Therefore $x = \boxed{-7}$.", "integer", -7),
    ("<think>Maybe 31? The list has 29 rows plus one.</think>\n\n30", "integer", 30),
    ("\uff14\uff12", "integer", 42),
    ("Total: \u20ac2,450.75", "number", 2450.75),
    ("1.234.567,89 \u20ac", "number", 1234567.89),
    ("CHF 1'250.50", "number", 1250.5),
    ("\u22127 \u00b0C", "number", -7),
    ("```\n3.25\n```", "number", 3.25),
    ("The mass is 4.6 kg.", "number", 4.6),
    ("Result: 6.5e3", "number", 6500.0),
    ('{"answer": 12.5}', record({"answer": N}), {"answer": 12.5}),
    # --- boolean, alone
    ("**Yes**, the invoice is overdue.", "boolean", True),
    ("No. The two files differ in the header.", "boolean", False),
    ("```\ntrue\n```", "boolean", True),
    (
        "<think>Yes? The deadline was Friday, so yes... wait, it was moved.</think>\nFalse",
        "boolean",
        False,
    ),
    (r"$\boxed{\text{True}}$", "boolean", True),
    ("The statement is true.", "boolean", True),
    ("Verdict: FALSE", "boolean", False),
    # --- string
    ('"Oslo"', "string", "Oslo"),
    ("The kettle is on the stove.", "string", "The kettle is on the stove."),
    (
        "<think>They want a French greeting.</think>\n\nBonjour \u00e0 tous",
        "string",
        "Bonjour \u00e0 tous",
    ),
    (
        "Put {name} where the guest is mentioned.",
        "string",
        "Put {name} where the guest is mentioned.",
    ),
    # --- enum
    ("Category: `Billing`", E("billing", "technical", "other"), "billing"),
    ("I would put this ticket at HIGH priority.", E("low", "medium", "high"), "high"),
    ("In Progress", E("open", "in_progress", "done"), "in_progress"),
    ("Very high", E("high", "very high", "low"), "very high"),
    ("Neutral. The reviewer only lists facts.", SENT, "neutral"),
    (
        "\u60c5\u611f\uff1a\u8d1f\u9762\u3002",
        E("\u6b63\u9762", "\u4e2d\u6027", "\u8d1f\u9762"),
        "\u8d1f\u9762",
    ),
    ('Stimmung: "negativ"', E("positiv", "negativ"), "negativ"),
    ("Final answer: (B)", E("A", "B", "C", "D"), "B"),
    ("The language is C++.", E("C", "C++", "C#"), "C++"),
    ("2", {"type": "integer", "enum": [1, 2, 3]}, 2),
    ('{"label": "POSITIVE"}', record({"label": SENT}), {"label": "positive"}),
    ("No", E("yes", "no", "unknown"), "no"),
    (
        '["Red", "dark blue", "GREEN"]',
        A(E("red", "green", "dark_blue")),
        ["red", "dark_blue", "green"],
    ),
    (
        "<think>It could be negative, the second half complains.</think>\n**Positive**",
        SENT,
        "positive",
    ),
    # --- string[] and arrays of scalars
    (
        "Here are three capitals:\n\n1. Oslo\n2. Lima\n3. Cairo",
        "string[]",
        ["Oslo", "Lima", "Cairo"],
    ),
    ("- apples\n- pears\n- plums", "string[]", ["apples", "pears", "plums"]),
    (
        "1. Wash, peel and slice\n2. Boil: ten minutes\n3. Serve",
        "string[]",
        ["Wash, peel and slice", "Boil: ten minutes", "Serve"],
    ),
    ("keywords = ['tide', 'harbour', 'moon']", "string[]", ["tide", "harbour", "moon"]),
    ("[red wine, bread, goat cheese]", "string[]", ["red wine", "bread", "goat cheese"]),
    ('"alpha"\n"omega"', "string[]", ["alpha", "omega"]),
    ('{"keywords": ["loom", "thread"]}', "string[]", ["loom", "thread"]),
    ('["12", "true", "null"]', "string[]", ["12", "true", "null"]),
    ('```json\n["walk the dog", "buy sta', "string[]", ["walk the dog", "buy sta"]),
    (
        'The tags are ["a", "b"]. (I left out the ones in brackets [sic].)',
        A(S, minItems=2),
        ["a", "b"],
    ),
    ('["4", "11", "-2"]', A(INT), [4, 11, -2]),
    ("* 3.5\n* 4.25\n* 0.75", A(N), [3.5, 4.25, 0.75]),
    ('["yes", "no", "yes"]', A(B), [True, False, True]),
    ("[4, 8, 15, 16, 2", A(INT), [4, 8, 15, 16]),
    ('["Tarn", "3"]', {"type": "array", "prefixItems": [S, INT]}, ["Tarn", 3]),
    # --- fields read as the schema wants them
    (
        '{"count": "12", "name": "12"}',
        record({"count": INT, "name": S}),
        {"count": 12, "name": "12"},
    ),
    ('{"price": "$19.99"}', record({"price": N}), {"price": 19.99}),
    ('{"percent": "87%"}', record({"percent": N}), {"percent": 87}),
    (
        '{"distance_km": 42.2 km, "runner": "Ines"}',
        record({"distance_km": N, "runner": S}),
        {"distance_km": 42.2, "runner": "Ines"},
    ),
    (
        '{"city": "Lagash", "population": 8,405,837, "capital": false}',
        record({"city": S, "population": INT, "capital": B}),
        {"city": "Lagash", "population": 8405837, "capital": False},
    ),
    ('{"budget": 1_500_000}', record({"budget": INT}), {"budget": 1500000}),
    (
        '{"is_spam": "Yes", "urgent": "false"}',
        record({"is_spam": B, "urgent": B}),
        {"is_spam": True, "urgent": False},
    ),
    ('{"rows": 12.0}', record({"rows": INT}), {"rows": 12}),
    ('{"id": "0042"}', record({"id": {"type": ["string", "integer"]}}), {"id": "0042"}),
    (
        "{'nickname': None, 'name': 'Bo'}",
        record({"nickname": {"type": ["string", "null"]}, "name": S}),
        {"nickname": None, "name": "Bo"},
    ),
    (
        '{"due": 2030-11-02, "done": no}',
        record({"due": S, "done": B}),
        {"due": "2030-11-02", "done": False},
    ),
    ('{"flag": "true"}', record({"flag": S}), {"flag": "true"}),
    (
        '{"apples": "3", "pears": 5}',
        {"type": "object", "additionalProperties": INT},
        {"apples": 3, "pears": 5},
    ),
    (
        r'{"address": "{\"street\": \"Kai 4\", \"zip\": \"5003\"}"}',
        record({"address": record({"street": S, "zip": S})}),
        {"address": {"street": "Kai 4", "zip": "5003"}},
    ),
    (r'{"tags": "[\"old\", \"oak\"]"}', record({"tags": A(S)}), {"tags": ["old", "oak"]}),
    (r'{"payload": "{\"a\": 1}"}', record({"payload": S}), {"payload": '{"a": 1}'}),
    (r'"{\"name\": \"Vera\", \"age\": 28}"', PERSON, {"name": "Vera", "age": 28}),
    (
        '{"title": "The "Blue" Room", "stars": "4"}',
        record({"title": S, "stars": INT}),
        {"title": 'The "Blue" Room', "stars": 4},
    ),
    # --- objects written otherwise than as JSON
    ("**name:** Anna Holm\n**age:** 34", PERSON, {"name": "Anna Holm", "age": 34}),
    ("- Name: Piet\n- Age: 61 years", PERSON, {"name": "Piet", "age": 61}),
    (
        "```yaml\ntitle: Low tide\ntags:\n  - sea\n  - photo\npublished: true\n```",
        record({"title": S, "tags": A(S), "published": B}),
        {"title": "Low tide", "tags": ["sea", "photo"], "published": True},
    ),
    ("name: Nadia\nage: 45", PERSON, {"name": "Nadia", "age": 45}),
    (
        "<person>\n  <name>Sven</name>\n  <age>19</age>\n</person>",
        PERSON,
        {"name": "Sven", "age": 19},
    ),
    (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBergen\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        record({"city": S, "days": INT}),
        {"city": "Bergen", "days": 3},
    ),
    ("Person(name='Ilse', age=70)", PERSON, {"name": "Ilse", "age": 70}),
    (
        "| item | qty |\n|------|-----|\n| rope | 4 |\n| hook | 12 |",
        A(ITEM),
        [{"item": "rope", "qty": 4}, {"item": "hook", "qty": 12}],
    ),
    (
        "```csv\nitem,qty\nbolt,40\nwasher,75\n```",
        A(ITEM),
        [{"item": "bolt", "qty": 40}, {"item": "washer", "qty": 75}],
    ),
    # --- wrappers and several blocks
    (
        '{"name": "save_person", "arguments": {"first": "Tom", "years": 8}}',
        record({"first": S, "years": INT}),
        {"first": "Tom", "years": 8},
    ),
    (
        r'{"type": "function", "function": {"name": "order", "arguments": "{\"item\": \"lamp\", \"qty\": 2}"}}',
        ITEM,
        {"item": "lamp", "qty": 2},
    ),
    (
        'The schema is:\n{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}\nSo the answer is:\n{"name": "Rosa", "age": 39}',
        PERSON,
        {"name": "Rosa", "age": 39},
    ),
    (
        '```json\n{"name": "Jo", "age": 23}\n```\nTo send it, use this configuration:\n```json\n{"endpoint": "/people", "retry": 3}\n```',
        PERSON,
        {"name": "Jo", "age": 23},
    ),
    (
        '{"name": "Mara", "age": 50}\n\nSorry, Mara is 51 since May. Corrected:\n\n{"name": "Mara", "age": 51}',
        PERSON,
        {"name": "Mara", "age": 51},
    ),
    # --- arrays of objects
    (
        '{"item": "cup", "qty": 6}\n{"item": "jug", "qty": 1}\n{"item": "tray", "qty": 2}',
        A(ITEM),
        [{"item": "cup", "qty": 6}, {"item": "jug", "qty": 1}, {"item": "tray", "qty": 2}],
    ),
    (
        '1. {"item": "saw", "qty": 1}\n2. {"item": "nail", "qty": 200}',
        A(ITEM),
        [{"item": "saw", "qty": 1}, {"item": "nail", "qty": 200}],
    ),
    (
        '{"item": "ink", "qty": 3}, {"item": "pen", "qty": 9}',
        A(ITEM),
        [{"item": "ink", "qty": 3}, {"item": "pen", "qty": 9}],
    ),
    # --- nested, unions, references
    (
        'Here you go:\n{"order": {"id": "A-9", "lines": [{"item": "vase", "qty": "2"}, {"item": "bowl", "qty": 1,}]}, "paid": True}',
        record({"order": record({"id": S, "lines": A(ITEM)}), "paid": B}),
        {
            "order": {
                "id": "A-9",
                "lines": [{"item": "vase", "qty": 2}, {"item": "bowl", "qty": 1}],
            },
            "paid": True,
        },
    ),
    ('{"kind": "circle", "radius": "2.5"}', SHAPE, {"kind": "circle", "radius": 2.5}),
    (
        "[{'kind': 'rect', 'width': 3, 'height': 4}, {'kind': 'circle', 'radius': 1}]",
        A(SHAPE),
        [{"kind": "rect", "width": 3, "height": 4}, {"kind": "circle", "radius": 1}],
    ),
    (
        '```json\n{\n  "type": "purchase",\n  "user": "kai77"\n  "amount": "\u20ac12.40"\n}\n```',
        EVENT,
        {"type": "purchase", "user": "kai77", "amount": 12.4},
    ),
    (
        '{label: "root", children: [{label: "left"}, {label: "right", children: [{label: "leaf"}]}]}',
        TREE,
        {
            "label": "root",
            "children": [{"label": "left"}, {"label": "right", "children": [{"label": "leaf"}]}],
        },
    ),
    (
        '{"summary": "Short trip", "notes": "The bus was cro',
        record({"summary": S, "notes": S}, ["summary"]),
        {"summary": "Short trip", "notes": "The bus was cro"},
    ),
    (
        '{"name": "Elin", "age": 33, "shoe": 4',
        record({"name": S, "age": INT, "shoe": INT}, ["name", "age"]),
        {"name": "Elin", "age": 33},
    ),
]


XML: list[tuple[str, Any]] = [
    (
        "Here is the document:\n```xml\n<menu><dish>Soup</dish><dish>Pie</dish></menu>\n```\nEnjoy!",
        {"menu": {"dish": ["Soup", "Pie"]}},
    ),
    (
        '<?xml version="1.0" encoding="UTF-8"?>\n<card>\n  <owner>Liv</owner>\n  <limit>0500</limit>\n</card>',
        {"card": {"owner": "Liv", "limit": "0500"}},
    ),
    ("<list><!-- two only --><x>a</x><x>b</x></list>", {"list": {"x": ["a", "b"]}}),
    (
        "<fix><file>main.c</file><code><![CDATA[if (a < b && c) { run(); }]]></code></fix>",
        {"fix": {"file": "main.c", "code": "if (a < b && c) { run(); }"}},
    ),
    (
        "<firm><title>Berg &amp; Sohn</title><rule>x &lt; 3</rule></firm>",
        {"firm": {"title": "Berg & Sohn", "rule": "x < 3"}},
    ),
    (
        "<spice><label>Salt & Pepper</label><price>3.20</price></spice>",
        {"spice": {"label": "Salt & Pepper", "price": "3.20"}},
    ),
    (
        "<cond><expr>x < 5</expr><then>stop</then></cond>",
        {"cond": {"expr": "x < 5", "then": "stop"}},
    ),
    (
        "<letter><to>Mina</to><text>The snow came early and",
        {"letter": {"to": "Mina", "text": "The snow came early and"}},
    ),
    ("<trip><from>Bern</from><via>Olten</via>", {"trip": {"from": "Bern", "via": "Olten"}}),
    (
        "<guest><first>Ana</frist><last>Roca</last></guest>",
        {"guest": {"first": "Ana", "last": "Roca"}},
    ),
    (
        "<Place><City>Rome</city><Land>Italy</land></Place>",
        {"Place": {"City": "Rome", "Land": "Italy"}},
    ),
    (
        "<think>Should I use <a>1</a>? No, the root must be report.</think>\n<report><state>clear</state><level>low</level></report>",
        {"report": {"state": "clear", "level": "low"}},
    ),
    (
        "<team>\n  <member>\n    <nick>fox</nick>\n    <role>lead</role>\n  </member>\n  <member>\n    <nick>owl</nick>\n    <role>scout</role>\n  </member>\n  <town>Riga</town>\n</team>",
        {
            "team": {
                "member": [{"nick": "fox", "role": "lead"}, {"nick": "owl", "role": "scout"}],
                "town": "Riga",
            }
        },
    ),
    (
        "\u041a\u043e\u043d\u0435\u0447\u043d\u043e:\n<\u043a\u043d\u0438\u0433\u0430><\u0430\u0432\u0442\u043e\u0440>\u041b\u0435\u0432\u0438\u043d</\u0430\u0432\u0442\u043e\u0440><\u0433\u043e\u0434>1998</\u0433\u043e\u0434></\u043a\u043d\u0438\u0433\u0430>",
        {
            "\u043a\u043d\u0438\u0433\u0430": {
                "\u0430\u0432\u0442\u043e\u0440": "\u041b\u0435\u0432\u0438\u043d",
                "\u0433\u043e\u0434": "1998",
            }
        },
    ),
    (
        "<menu2><drink>Caf&#233;</drink><snack>Cr&#xEA;pe</snack></menu2>",
        {"menu2": {"drink": "Caf\u00e9", "snack": "Cr\u00eape"}},
    ),
    (
        "```xml\n<vote><for>3</for><against>4</against></vote>\n```\nSorry, I swapped the numbers. The corrected version:\n```xml\n<vote><for>4</for><against>3</against></vote>\n```",
        {"vote": {"for": "4", "against": "3"}},
    ),
    (
        "```xml\n<room><floor>2</floor><view>sea</view></room>",
        {"room": {"floor": "2", "view": "sea"}},
    ),
    ("<row><id>7</ id><mark>ok</mark ></row>", {"row": {"id": "7", "mark": "ok"}}),
    (
        '<log><entry>{"a": 1}</entry><flag>true</flag></log>',
        {"log": {"entry": '{"a": 1}', "flag": "true"}},
    ),
    (
        "The poem in the form you wanted: <poem><verse>first line\nsecond line</verse><by>anon</by></poem> I hope you like it.",
        {"poem": {"verse": "first line\nsecond line", "by": "anon"}},
    ),
]


REFUSED: list[tuple[str, Any]] = [
    # --- nothing there
    ("", PERSON),
    ("I'm sorry, but I can't help with that request.", PERSON),
    ('<think>The person is Ola, so {"name": "Ola", "age": 20} would do.</think>', PERSON),
    (
        '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}',
        PERSON,
    ),
    ("The document does not say how many people came.", "integer"),
    # --- required parts missing, now or because of the cut
    ('{"name": "Gil"}', PERSON),
    ('{"name": "Hedda", "age": 4', PERSON),
    ('{"name": "Kurt", "age": null}', PERSON),
    (
        '{"order": {"lines": [{"item": "mug", "qty": 1}, {"item": "pan"}]}}',
        record({"order": record({"lines": A(ITEM)})}),
    ),
    ("| item | qty |\n|---|---|\n| flour | 2 |\n| yeast | |", A(ITEM)),
    # --- numbers
    ("1,5", "number"),
    ('{"length": "2,75"}', record({"length": N})),
    ("Between 5 and 10", "integer"),
    ("12 or 13", "number"),
    ("3.7", "integer"),
    ('{"children": 2.5}', record({"children": INT})),
    ("N/A", "number"),
    ('{"version": "1.12.3"}', record({"version": N})),
    ("Width: 20, height: 30", "number"),
    ('[1, 2, "unknown", 4]', A(INT)),
    ('{"score": 15}', record({"score": {"type": "integer", "minimum": 0, "maximum": 10}})),
    # --- booleans
    ("Maybe.", "boolean"),
    ('{"active": 1}', record({"active": B})),
    ("0", "boolean"),
    ("Yes and no: the roof is sound, the cellar is not.", "boolean"),
    # --- enums
    ("The tone is not positive.", SENT),
    ("Somewhere between positive and neutral.", SENT),
    ('{"priority": "urgent"}', record({"priority": E("low", "medium", "high")})),
    ("None of the options fits this text.", E("sports", "politics", "science")),
    # --- text, lists and objects mixed up
    ('{"zip": 90210}', record({"zip": S})),
    ('{"tags": "garden"}', record({"tags": A(S)})),
    ('[{"name": "Pia", "age": 9}, {"name": "Max", "age": 11}]', PERSON),
    ('{"monday": 3, "tuesday": 5}', A(INT)),
    # --- unions
    ('{"kind": "triangle", "base": 3, "height": 2}', SHAPE),
    ('{"kind": "rect", "radius": 4}', SHAPE),
]
