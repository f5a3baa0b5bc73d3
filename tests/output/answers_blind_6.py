"""Answers that models could write, with their only sensible reading; the sixth table, by an author of its own.

Its author had seen neither the parser nor the other tables.
"""

from __future__ import annotations

from typing import Any

S = {"type": "string"}
INT = {"type": "integer"}
N = {"type": "number"}
B = {"type": "boolean"}


def obj(props: dict, optional: tuple = (), **more: Any) -> dict:
    return {
        "type": "object",
        "properties": props,
        "required": [k for k in props if k not in optional],
        **more,
    }


def arr(items: Any) -> dict:
    return {"type": "array", "items": items}


def enum(*words: str) -> dict:
    return {"type": "string", "enum": list(words)}


def const(word: str) -> dict:
    return {"type": "string", "const": word}


PLAIN: list[tuple[str, Any]] = [
    # --- around the value
    (
        """Sure! Here's the invoice summary you asked for:

```json
{
  "invoice": "F-2291",
  "customer": "Malik & Sons",
  "lines": [{"item": "hinge", "qty": 40}, {"item": "latch", "qty": 12}],
  "paid": false
}
```

Let me know if you'd like the VAT broken out!""",
        {
            "invoice": "F-2291",
            "customer": "Malik & Sons",
            "lines": [{"item": "hinge", "qty": 40}, {"item": "latch", "qty": 12}],
            "paid": False,
        },
    ),
    (
        """<think>
The user wants the ward and the bed. Maybe {"ward": "C2", "bed": 4}? No, the note was updated: bed 9.
</think>
{"ward": "C2", "bed": 9}""",
        {"ward": "C2", "bed": 9},
    ),
    (
        """Okay, the passenger changed trains in Basel, so there are two legs and not three.
</think>

{"legs": 2, "via": ["Basel"]}""",
        {"legs": 2, "via": ["Basel"]},
    ),
    (
        '<reasoning>Soil is acid, so lime first.</reasoning>\n{"action": "lime", "kg_per_are": 12}',
        {"action": "lime", "kg_per_are": 12},
    ),
    (
        "<|channel|>analysis<|message|>Need the opening name only.<|end|><|start|>assistant<|channel|>final<|message|>"
        '{"opening": "Caro-Kann", "eco": "B12"}',
        {"opening": "Caro-Kann", "eco": "B12"},
    ),
    ('{"verdict": "keep", "score": 0.82}<|im_end|>', {"verdict": "keep", "score": 0.82}),
    (
        '[TOOL_CALLS][{"name": "book_ferry", "arguments": {"from": "Split", "to": "Hvar", "cars": 1}}]',
        [{"name": "book_ferry", "arguments": {"from": "Split", "to": "Hvar", "cars": 1}}],
    ),
    (
        '<tool_call>\n{"name": "set_irrigation", "arguments": {"zone": 3, "minutes": 25}}\n</tool_call>',
        {"name": "set_irrigation", "arguments": {"zone": 3, "minutes": 25}},
    ),
    (
        '<function=lookup_statute>{"code": "BGB", "section": "573"}</function>',
        {"code": "BGB", "section": "573"},
    ),
    (
        'Assistant: {"language": "Welsh", "confidence": 0.97}',
        {"language": "Welsh", "confidence": 0.97},
    ),
    ('json\n{"genre": "roguelike", "coop": true}', {"genre": "roguelike", "coop": True}),
    ('~~~json\n{"aisle": 7, "stock": 0}\n~~~', {"aisle": 7, "stock": 0}),
    (
        '```json\n{\n  "court": "Regional Court",\n  "docket": "4 O 118/23"\n}',
        {"court": "Regional Court", "docket": "4 O 118/23"},
    ),
    (
        'The record is `{"tag": "EE-4471", "breed": "Merino"}` as requested.',
        {"tag": "EE-4471", "breed": "Merino"},
    ),
    ('**{"winner": "south", "tricks": 9}**', {"winner": "south", "tricks": 9}),
    (
        '> {\n>   "from": "Ines",\n>   "topic": "roof repair",\n>   "replies": 4\n> }',
        {"from": "Ines", "topic": "roof repair", "replies": 4},
    ),
    (
        """1. I read the log.
2. I counted the errors:

   ```json
   {"errors": 17, "first": "disk full"}
   ```
3. Nothing else was found.""",
        {"errors": 17, "first": "disk full"},
    ),
    (
        """### Result

    {
        "runway": "27L",
        "wind": "270/14"
    }

The wind comes from the METAR of 06:20.""",
        {"runway": "27L", "wind": "270/14"},
    ),
    (
        """First attempt:
{"total": 118, "currency": "CHF"}
Wait, I forgot the deposit. Corrected:
{"total": 98, "currency": "CHF"}""",
        {"total": 98, "currency": "CHF"},
    ),
    (
        """```json
{"species": "Alnus glutinosa", "height_m": 18}
```
A malformed record would look like {"species": 5} and should not be sent.""",
        {"species": "Alnus glutinosa", "height_m": 18},
    ),
    (
        """Run this to reproduce it:

```python
import sys
print(sys.argv[1])
```

And this is the finding:

```json
{"file": "cli.py", "line": 2, "issue": "no check of argv"}
```""",
        {"file": "cli.py", "line": 2, "issue": "no check of argv"},
    ),
    (
        """```json
{"port": 8443, "tls": true}
```
Start the server with:
```bash
./serve --config out.json
```""",
        {"port": 8443, "tls": True},
    ),
    ('{"id": 6, "mood": "calm"}\n\n{"id": 6, "mood": "calm"}', {"id": 6, "mood": "calm"}),
    (
        'I would begin with {"dose": ... no, the weight comes first. Final record:\n\n{"weight": 61, "dose": 305}',
        {"weight": 61, "dose": 305},
    ),
    (
        'Put the name where the letter says {user}.\n\n{"user": "Tomasz", "salutation": "Szanowny Panie"}',
        {"user": "Tomasz", "salutation": "Szanowny Panie"},
    ),
    (
        '2031-02-11T04:12:09Z INFO extractor result={"pages": 12, "ocr": false}',
        {"pages": 12, "ocr": False},
    ),
    (
        'Natürlich, hier ist das Ergebnis als JSON:\n\n{"Straße": "Lärchenweg", "Nr": "7a", "Größe": 84.5}\n\nViele Grüße!',
        {"Straße": "Lärchenweg", "Nr": "7a", "Größe": 84.5},
    ),
    (
        '以下は結果です。\n```json\n{"料理": "肉じゃが", "分": 40, "材料": ["牛肉", "じゃがいも"]}\n```\nお役に立てば幸いです。',
        {"料理": "肉じゃが", "分": 40, "材料": ["牛肉", "じゃがいも"]},
    ),
    # --- code styles
    (
        "{'tenant': 'Okafor', 'deposit_paid': True, 'notice': None, 'pets': False}",
        {"tenant": "Okafor", "deposit_paid": True, "notice": None, "pets": False},
    ),
    (
        """```python
result = {
    "title": (
        "Late frost "
        "in the orchard"
    ),
    "rows": 14,  # counted twice
}
```""",
        {"title": "Late frost in the orchard", "rows": 14},
    ),
    (
        """const settings = {
  theme: 'dusk',   // user choice
  fontSize: 15,
  plugins: ['spell', 'vim',],
};""",
        {"theme": "dusk", "fontSize": 15, "plugins": ["spell", "vim"]},
    ),
    ('[("knight", 3), ("rook", 5), ("queen", 9)]', [["knight", 3], ["rook", 5], ["queen", 9]]),
    ('print(json.dumps({"river": "Drava", "km": 710}))', {"river": "Drava", "km": 710}),
    ("{u'titel': u'Der Fluss', u'jahr': 1987}", {"titel": "Der Fluss", "jahr": 1987}),
    ('{1: "gold", 2: "silver", 3: "bronze"}', {"1": "gold", "2": "silver", "3": "bronze"}),
    ('{"dog"=>"Rex", "chip"=>nil, "age"=>4}', {"dog": "Rex", "chip": None, "age": 4}),
    ("{mask: 0x1F, gain: .5, offset: +3}", {"mask": 31, "gain": 0.5, "offset": 3}),
    (
        '{"before": undefined, "after": none, "kept": true}',
        {"before": None, "after": None, "kept": True},
    ),
    (
        '{"open": TRUE, "holiday": FALSE, "closing": NULL}',
        {"open": True, "holiday": False, "closing": None},
    ),
    ('{"motto": "slow " + "and " + "steady", "laps": 3}', {"motto": "slow and steady", "laps": 3}),
    (
        '{"poem": """Rain on the roof,\n"tick" says the clock.""", "lines": 2}',
        {"poem": 'Rain on the roof,\n"tick" says the clock.', "lines": 2},
    ),
    (
        '{"query": `SELECT name\nFROM herd\nWHERE age > 2`, "rows": 31}',
        {"query": "SELECT name\nFROM herd\nWHERE age > 2", "rows": 31},
    ),
    (
        '{\n  /* filled in by the nurse */\n  "pulse": 72,\n  "bp": "120/80" /* sitting */\n}',
        {"pulse": 72, "bp": "120/80"},
    ),
    ('({"callback": "done", "code": 200});', {"callback": "done", "code": 200}),
    # --- escaped as a whole, odd encodings
    (
        r"{\n  \"bus\": \"N7\",\n  \"stops\": [\"Mill\", \"Quay\"]\n}",
        {"bus": "N7", "stops": ["Mill", "Quay"]},
    ),
    ("{&quot;crop&quot;: &quot;rye&quot;, &quot;ha&quot;: 4}", {"crop": "rye", "ha": 4}),
    ('\ufeff{\u00a0"lot":\u00a0"K-9",\u00a0"bids": 3}', {"lot": "K-9", "bids": 3}),
    ("{“museum”: “Prado”, “rooms”: 118}", {"museum": "Prado", "rooms": 118}),
    ("{„Ort“: „Ulm“, „Höhe“: 478}", {"Ort": "Ulm", "Höhe": 478}),
    ('{"城市"："杭州"，"区"：["西湖"，"滨江"]}', {"城市": "杭州", "区": ["西湖", "滨江"]}),
    ('{""sku"": ""B-12"", ""colour"": ""teal""}', {"sku": "B-12", "colour": "teal"}),
    # --- punctuation of the structure
    (
        '{"guests": 6, "menu": ["soup", "trout",], "wine": "dry",}',
        {"guests": 6, "menu": ["soup", "trout"], "wine": "dry"},
    ),
    (
        '{\r\n  "mill": "Unit 2"\r\n  "tonnes": 31\r\n  "halted": false\r\n}',
        {"mill": "Unit 2", "tonnes": 31, "halted": False},
    ),
    ('[{"q": "2+2", "a": 4} {"q": "3*3", "a": 9}]', [{"q": "2+2", "a": 4}, {"q": "3*3", "a": 9}]),
    ('[\n  "cumin"\n  "coriander"\n  "salt"\n]', ["cumin", "coriander", "salt"]),
    (
        '{"clause": "The tenant gave notice "\n           "on 3 March.", "valid": true}',
        {"clause": "The tenant gave notice on 3 March.", "valid": True},
    ),
    ('{"x": 4; "y": -2; "label": "peak"}', {"x": 4, "y": -2, "label": "peak"}),
    ('{"boss" = "Lich", "hp" = 900}', {"boss": "Lich", "hp": 900}),
    ('{"kiln": 2,, "cone": 6}', {"kiln": 2, "cone": 6}),
    ('{"tags": ["flu", "winter", "count": 2}', {"tags": ["flu", "winter"], "count": 2}),
    ('{"scores": [11, 7, 11}', {"scores": [11, 7, 11]}),
    (
        '{"plant": {"name": "basil", "light": "full"}}}',
        {"plant": {"name": "basil", "light": "full"}},
    ),
    (
        '{"visit": {"doctor": "Dr. Abe", "reason": "cough"}\n\nHope that helps!',
        {"visit": {"doctor": "Dr. Abe", "reason": "cough"}},
    ),
    (
        '"diagnosis": "otitis media", "side": "left", "days": 5}',
        {"diagnosis": "otitis media", "side": "left", "days": 5},
    ),
    ('{tribunal": "Lille", "year": 2019}', {"tribunal": "Lille", "year": 2019}),
    ('{\n  "plot": "B7,\n  "crop": "barley"\n}', {"plot": "B7", "crop": "barley"}),
    # --- words and numbers without quotes
    (
        "{status: shipped, carrier: DHL, parcels: 2}",
        {"status": "shipped", "carrier": "DHL", "parcels": 2},
    ),
    (
        '{"remark": needs a new valve, "priority": 2}',
        {"remark": "needs a new valve", "priority": 2},
    ),
    ('{max-speed: 80, road type: "gravel"}', {"max-speed": 80, "road type": "gravel"}),
    ('{"load": 10 kg, "trips": 3}', {"load": "10 kg", "trips": 3}),
    ('{"humidity": 63%, "fare": $49.90}', {"humidity": "63%", "fare": "$49.90"}),
    ('{"due": 2031-05-01, "sent": true}', {"due": "2031-05-01", "sent": True}),
    (
        '{"match": "Lyon - Nantes", "score": 3:2, "minute": 88}',
        {"match": "Lyon - Nantes", "score": "3:2", "minute": 88},
    ),
    (
        '{"team": "orange", "color": #ff8800, "size": 4}',
        {"team": "orange", "color": "#ff8800", "size": 4},
    ),
    (
        '{"contact": ana@farm.example, "site": https://farm.example/shop?id=7, "open": true}',
        {"contact": "ana@farm.example", "site": "https://farm.example/shop?id=7", "open": True},
    ),
    # --- inside strings
    (
        '{"quote": "She said "stop", then left", "speaker": "Mara"}',
        {"quote": 'She said "stop", then left', "speaker": "Mara"},
    ),
    (
        '{"title": "The song "Blue Kite"", "year": 1974}',
        {"title": 'The song "Blue Kite"', "year": 1974},
    ),
    ('{"item": "27" monitor", "price": 189}', {"item": '27" monitor', "price": 189}),
    (
        '{"html": "<a href="/home">Start</a>", "ok": true}',
        {"html": '<a href="/home">Start</a>', "ok": True},
    ),
    ('{"payload": "{"id": 5}", "retry": false}', {"payload": '{"id": 5}', "retry": False}),
    ("{'owner': 'O'Brien', 'boat': 'Gull'}", {"owner": "O'Brien", "boat": "Gull"}),
    (
        r"{'hint': 'It\'s under the mat', 'used': False}",
        {"hint": "It's under the mat", "used": False},
    ),
    (
        """{"language": "python", "code": "def area(r):
    # circle
    return 3.14 * r ** 2
", "tests": 2}""",
        {
            "language": "python",
            "code": "def area(r):\n    # circle\n    return 3.14 * r ** 2\n",
            "tests": 2,
        },
    ),
    (
        """```json
{
  "file": "README.md",
  "content": "# Setup

```bash
make all
```
Done."
}
```""",
        {"file": "README.md", "content": "# Setup\n\n```bash\nmake all\n```\nDone."},
    ),
    (
        r'{"formula": "\alpha + \sqrt{\lambda}", "n": 2}',
        {"formula": "\\alpha + \\sqrt{\\lambda}", "n": 2},
    ),
    (r'{"latex": "\\frac{1}{2} \\times \\beta"}', {"latex": "\\frac{1}{2} \\times \\beta"}),
    (r'{"pattern": "^\d{4}-\w+$", "flags": "i"}', {"pattern": "^\\d{4}-\\w+$", "flags": "i"}),
    (
        r'{"install": "D:\Spiele\Karten\", "players": 2}',
        {"install": "D:\\Spiele\\Karten\\", "players": 2},
    ),
    ('{"cell": "A1\tB1", "sheet": 2,}', {"cell": "A1\tB1", "sheet": 2}),
    # --- valid strings that only look like something
    (
        r'{"note": "write </think> and ```json here", "url": "http://x.example//a", "cut": "/* no */ # no"}',
        {
            "note": "write </think> and ```json here",
            "url": "http://x.example//a",
            "cut": "/* no */ # no",
        },
    ),
    (
        '{"a": "null", "b": "true", "c": "12", "d": "None", "e": ""}',
        {"a": "null", "b": "true", "c": "12", "d": "None", "e": ""},
    ),
    (
        r'{"vehicle": "\ud83d\ude9c", "path": "a\/b", "name": "It’s “fine”"}',
        {"vehicle": "🚜", "path": "a/b", "name": "It’s “fine”"},
    ),
    (
        '{"ledger": 12345678901234567890, "rate": 1.5E-3, "": [], "meta": {}}',
        {"ledger": 12345678901234567890, "rate": 0.0015, "": [], "meta": {}},
    ),
    # --- cut at the end
    (
        '{"patient": "R. Gill", "history": "Admitted after a fall from a lad',
        {"patient": "R. Gill", "history": "Admitted after a fall from a lad"},
    ),
    ('{"field": "North 4", "hectares": 12.', {"field": "North 4"}),
    ('{"lift": true, "rooms": 3, "balc', {"lift": True, "rooms": 3}),
    ('{"hotel": "Almas", "stars":', {"hotel": "Almas"}),
    ('{"grid": [[1, 2], [3, 4], [5, 6', {"grid": [[1, 2], [3, 4], [5]]}),
    (r'{"dish": "cr\u00e8me br\u00', {"dish": "crème br"}),
    (
        '```json\n[{"move": "e4", "by": "white"}, {"move": "c5", "by": "bla',
        [{"move": "e4", "by": "white"}, {"move": "c5", "by": "bla"}],
    ),
    ("{'stage': 'build', 'passed': True", {"stage": "build", "passed": True}),
]

COMMENT = {
    "$ref": "#/$defs/comment",
    "$defs": {
        "comment": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "replies": {"type": "array", "items": {"$ref": "#/$defs/comment"}},
            },
            "required": ["text", "replies"],
        }
    },
}
SHAPE = {
    "anyOf": [
        obj({"kind": const("circle"), "radius": N}),
        obj({"kind": const("box"), "width": N, "height": N}),
    ]
}
ACTION = {
    "oneOf": [
        obj({"action": const("refund"), "amount": N}),
        obj({"action": const("reply"), "message": S}),
        obj({"action": const("escalate"), "team": enum("legal", "fraud")}),
    ]
}

TYPED: list[tuple[str, Any, Any]] = [
    # --- one number
    ("There are 3 pens with 12 lambs each.\n\n**Answer:** 36", "integer", 36),
    (r"<think>2^7 = 128, 2^6 = 64.</think>Hence the value is \(\boxed{128}\).", "integer", 128),
    ("Each crate holds 9 jars.\n8 crates hold 8 * 9 = 72 jars.\n#### 72", "integer", 72),
    ("€2.345.678,90", "number", 2345678.9),
    ("Total: **$4,310.25**", "number", 4310.25),
    ("Temperature: \u221212.5", "number", -12.5),
    ("```\n6.02e23\n```", "number", 6.02e23),
    ("<score>7</score>", "integer", 7),
    ("Resultado: 481", "integer", 481),
    ("1,204,655", "integer", 1204655),
    ("12.0", "integer", 12),
    # --- one truth value
    ("Yes.", "boolean", True),
    ("Verdict: **False**", "boolean", False),
    ("```json\ntrue\n```", "boolean", True),
    (
        "<think>The deadline was Friday; the letter arrived on Monday.</think>\n\nNo",
        "boolean",
        False,
    ),
    # --- one text
    (
        "<think>Noise, heat, vibration: it is the bearing.</think>\nThe pump's bearing is worn.",
        "string",
        "The pump's bearing is worn.",
    ),
    ('"Lisbon"', "string", "Lisbon"),
    ('"14"', "string", "14"),
    # --- one option
    ("Sentiment: **Negative**.", enum("positive", "neutral", "negative"), "negative"),
    (
        "I would file this ticket under *billing*.",
        enum("billing", "delivery", "returns"),
        "billing",
    ),
    ("In Progress", enum("open", "in_progress", "done"), "in_progress"),
    (
        "Category: toxic\nReason: the message insults another player.",
        enum("harmless", "toxic", "advert"),
        "toxic",
    ),
    ("The correct answer is (C).", enum("A", "B", "C", "D"), "C"),
    ("Priorität: „Hoch“", enum("niedrig", "mittel", "hoch"), "hoch"),
    ("<label>HAM</label>", enum("spam", "ham"), "ham"),
    ("Rating: 4", {"type": "integer", "enum": [1, 2, 3, 4, 5]}, 4),
    (r"\boxed{D}", enum("A", "B", "C", "D"), "D"),
    # --- text read as number or boolean in objects
    (
        '{"age": "54", "smoker": "no", "name": "P. Lund"}',
        obj({"age": INT, "smoker": B, "name": S}),
        {"age": 54, "smoker": False, "name": "P. Lund"},
    ),
    (
        '{"invoice": "7781", "net": "$1,040.00", "lines": 3}',
        obj({"invoice": S, "net": N, "lines": INT}),
        {"invoice": "7781", "net": 1040.0, "lines": 3},
    ),
    (
        '{"product": "gloves", "discount_percent": "15%"}',
        obj({"product": S, "discount_percent": N}),
        {"product": "gloves", "discount_percent": 15},
    ),
    (
        '{"calf": "Lotte", "weight_kg": 72.5 kg}',
        obj({"calf": S, "weight_kg": N}),
        {"calf": "Lotte", "weight_kg": 72.5},
    ),
    (
        '{"drug": "ibuprofen", "dose": 400 mg, "per_day": 3}',
        obj({"drug": S, "dose": S, "per_day": INT}),
        {"drug": "ibuprofen", "dose": "400 mg", "per_day": 3},
    ),
    (
        '{"town": "Vigo", "people": 1,293,642, "coast": true}',
        obj({"town": S, "people": INT, "coast": B}),
        {"town": "Vigo", "people": 1293642, "coast": True},
    ),
    (
        '{"approve": "TRUE", "blocking": "False", "comments": 2}',
        obj({"approve": B, "blocking": B, "comments": INT}),
        {"approve": True, "blocking": False, "comments": 2},
    ),
    (
        '{"postcode": "02134", "street": "Elm Row"}',
        obj({"postcode": S, "street": S}),
        {"postcode": "02134", "street": "Elm Row"},
    ),
    ('{"price": "12.50"}', obj({"price": {"type": ["string", "number"]}}), {"price": "12.50"}),
    (
        '{"floor": none, "lift": true}',
        obj({"floor": {"type": ["integer", "null"]}, "lift": B}),
        {"floor": None, "lift": True},
    ),
    (
        "{'spouse': None, 'name': 'Ilse'}",
        obj({"spouse": {"anyOf": [S, {"type": "null"}]}, "name": S}),
        {"spouse": None, "name": "Ilse"},
    ),
    (
        '{"signed": "2029-11-03", "expires": "in two years"}',
        obj({"signed": {"type": "string", "format": "date"}, "expires": S}),
        {"signed": "2029-11-03", "expires": "in two years"},
    ),
    # --- options in objects
    (
        '{"title": "crash on save", "severity": "**Critical**"}',
        obj({"title": S, "severity": enum("minor", "major", "critical")}),
        {"title": "crash on save", "severity": "critical"},
    ),
    (
        '{"status": "Sold Out", "seats": 0}',
        obj({"status": enum("available", "sold-out", "cancelled"), "seats": INT}),
        {"status": "sold-out", "seats": 0},
    ),
    ('["Vegan", "NUT_FREE"]', arr(enum("vegan", "nut_free", "halal")), ["vegan", "nut_free"]),
    (
        '{"verdict": remove, "rule": 4}',
        obj({"verdict": enum("keep", "remove"), "rule": INT}),
        {"verdict": "remove", "rule": 4},
    ),
    # --- text that holds JSON
    (
        r'"{\"pump\": 2, \"state\": \"idle\"}"',
        obj({"pump": INT, "state": S}),
        {"pump": 2, "state": "idle"},
    ),
    (
        r'{"name": "move_piece", "arguments": "{\"from\": \"e2\", \"to\": \"e4\"}"}',
        obj({"name": S, "arguments": obj({"from": S, "to": S})}),
        {"name": "move_piece", "arguments": {"from": "e2", "to": "e4"}},
    ),
    (
        r'{"name": "log_raw", "arguments": "{\"level\": 3}"}',
        obj({"name": S, "arguments": S}),
        {"name": "log_raw", "arguments": '{"level": 3}'},
    ),
    (
        r'{"case": "R-5", "witnesses": "[\"Adeyemi\", \"Kuhn\"]"}',
        obj({"case": S, "witnesses": arr(S)}),
        {"case": "R-5", "witnesses": ["Adeyemi", "Kuhn"]},
    ),
    # --- unions told apart by a constant
    (
        '{"kind": "box", "width": "3.5", "height": 2}',
        SHAPE,
        {"kind": "box", "width": 3.5, "height": 2},
    ),
    (
        'I choose the second option.\n\n```json\n{"action": "reply", "message": "Your parcel left \'Depot 4\' today."}\n```',
        ACTION,
        {"action": "reply", "message": "Your parcel left 'Depot 4' today."},
    ),
    (
        '[{"action": "escalate", "team": "Fraud"}, {"action": "refund", "amount": "€ 20.50"}]',
        arr(ACTION),
        [{"action": "escalate", "team": "fraud"}, {"action": "refund", "amount": 20.5}],
    ),
    ("{kind: circle, radius: 4}", SHAPE, {"kind": "circle", "radius": 4}),
    (
        '{"reading": {"type": "range", "low": 3, "high": 7}, "sensor": "s9"}',
        obj(
            {
                "reading": {
                    "oneOf": [
                        obj({"type": const("point"), "value": N}),
                        obj({"type": const("range"), "low": N, "high": N}),
                    ]
                },
                "sensor": S,
            }
        ),
        {"reading": {"type": "range", "low": 3, "high": 7}, "sensor": "s9"},
    ),
    # --- which block
    (
        """Your schema is {"type": "object", "properties": {"rank": {"type": "integer"}, "clan": {"type": "string"}}}.
So my answer is {"rank": 3, "clan": "Owls"}""",
        obj({"rank": INT, "clan": S}),
        {"rank": 3, "clan": "Owls"},
    ),
    (
        '{"drug": "heparin", "units": 5000}\n\nBoth values follow the local protocol, see [2].',
        obj({"drug": S, "units": INT}),
        {"drug": "heparin", "units": 5000},
    ),
    (
        'Format: {"city": <string>, "nights": <integer>}\nAnswer: {"city": "Tartu", "nights": 2}',
        obj({"city": S, "nights": INT}),
        {"city": "Tartu", "nights": 2},
    ),
    (
        '```json\n{"court": "High Court", "costs": 900}\n```\nSources I used:\n```json\n["transcript", "order"]\n```',
        obj({"court": S, "costs": N}),
        {"court": "High Court", "costs": 900},
    ),
    (
        '{"level": 4, "lives": 1}\nHmm, the player picked up a heart afterwards:\n{"level": 4, "lives": 2}',
        obj({"level": INT, "lives": INT}),
        {"level": 4, "lives": 2},
    ),
    (
        'The old entry was {"vat": 19, "net": 10}.\n```json\n{"vat": 7, "net": 10}\n```\nPlease check.',
        obj({"vat": N, "net": N}),
        {"vat": 7, "net": 10},
    ),
    (
        'Je ne suis pas juriste, mais voici ma lecture :\n{"clause": "résiliation", "délai_jours": "30", "valide": true}\nBonne journée !',
        obj({"clause": S, "délai_jours": INT, "valide": B}),
        {"clause": "résiliation", "délai_jours": 30, "valide": True},
    ),
    # --- arrays
    (
        '{"t": 1, "msg": "boot"}\n{"t": 5, "msg": "link up"}\n{"t": 9, "msg": "dhcp"}',
        arr(obj({"t": INT, "msg": S})),
        [{"t": 1, "msg": "boot"}, {"t": 5, "msg": "link up"}, {"t": 9, "msg": "dhcp"}],
    ),
    (
        '1. {"herb": "thyme", "pots": 4}\n2. {"herb": "sage", "pots": 2}',
        arr(obj({"herb": S, "pots": INT})),
        [{"herb": "thyme", "pots": 4}, {"herb": "sage", "pots": 2}],
    ),
    ('{"seat": "4A"},\n{"seat": "4B"}', "array", [{"seat": "4A"}, {"seat": "4B"}]),
    (
        "- check the brakes\n- oil the chain\n- true the rear wheel",
        "string[]",
        ["check the brakes", "oil the chain", "true the rear wheel"],
    ),
    (
        "Here are three names:\n\n1. Willow Bank\n2. Stone Acre\n3. Larkfield",
        "string[]",
        ["Willow Bank", "Stone Acre", "Larkfield"],
    ),
    (
        "keywords = ['habeas corpus', 'standing', 'ripeness']",
        "string[]",
        ["habeas corpus", "standing", "ripeness"],
    ),
    ('["oak", "ash", "bee', "string[]", ["oak", "ash", "bee"]),
    ('["1", "2.5", "1,000,000"]', arr(N), [1, 2.5, 1000000]),
    ('The matrix is\n[[1, 0, "2"],\n [0, 1, "-4"]]', arr(arr(N)), [[1, 0, 2], [0, 1, -4]]),
    ('["yes", "no", "yes"]', arr(B), [True, False, True]),
    ("[]", arr(obj({"name": S})), []),
    ("Los puertos son: [22, 80, 443] según el registro.", arr(INT), [22, 80, 443]),
    ('["say "cheese"", "smile"]', "string[]", ['say "cheese"', "smile"]),
    # --- objects, nested and otherwise
    (
        '{"text": "Nice", "replies": [{"text": "Agreed", "replies": []}, {"text": "Why?", "replies": [{"text": "Colours", "replies": []}]}]}',
        COMMENT,
        {
            "text": "Nice",
            "replies": [
                {"text": "Agreed", "replies": []},
                {"text": "Why?", "replies": [{"text": "Colours", "replies": []}]},
            ],
        },
    ),
    (
        '{"wheat": "6.2", "maize": 9, "oats": "$3.10"}',
        {"type": "object", "additionalProperties": N},
        {"wheat": 6.2, "maize": 9, "oats": 3.1},
    ),
    (
        '{"name": "Kaito"}',
        obj({"name": S, "nickname": S}, optional=("nickname",)),
        {"name": "Kaito"},
    ),
    (
        '{"song": "Ebb", "bpm": 92, "mode": "dorian"}',
        obj({"song": S, "bpm": INT}),
        {"song": "Ebb", "bpm": 92, "mode": "dorian"},
    ),
    (
        '{"goal": "repaint the shed", "steps": ["scrape", "prime"], "budget": 14',
        obj({"goal": S, "steps": arr(S), "budget": N}, optional=("budget",)),
        {"goal": "repaint the shed", "steps": ["scrape", "prime"]},
    ),
    (
        '<think>Short summary, then rating.</think>{"rating": 2, "summary": "The lid does not cl',
        obj({"rating": INT, "summary": S}),
        {"rating": 2, "summary": "The lid does not cl"},
    ),
    (
        '{"trip": {"legs": [{"from": "Oslo", "to": "Bergen", "km": "463"}, {"from": "Bergen", "to": "Voss", "km": 103}], "paid": "yes"}',
        obj({"trip": obj({"legs": arr(obj({"from": S, "to": S, "km": INT})), "paid": B})}),
        {
            "trip": {
                "legs": [
                    {"from": "Oslo", "to": "Bergen", "km": 463},
                    {"from": "Bergen", "to": "Voss", "km": 103},
                ],
                "paid": True,
            }
        },
    ),
    (
        r'{"proof": "Since \sin^2 x + \cos^2 x = 1, done.", "steps": 1}',
        obj({"proof": S, "steps": INT}),
        {"proof": "Since \\sin^2 x + \\cos^2 x = 1, done.", "steps": 1},
    ),
    (
        '{"path": "app.js", "patch": "if (a === "x") {\n  go();\n}", "risky": false}',
        obj({"path": S, "patch": S, "risky": B}),
        {"path": "app.js", "patch": 'if (a === "x") {\n  go();\n}', "risky": False},
    ),
    (
        "```yaml\ncrop: spelt\nhectares: 7\norganic: true\n```",
        obj({"crop": S, "hectares": N, "organic": B}),
        {"crop": "spelt", "hectares": 7, "organic": True},
    ),
    (
        "dish: dal\nserves: 4\nspicy: yes",
        obj({"dish": S, "serves": INT, "spicy": B}),
        {"dish": "dal", "serves": 4, "spicy": True},
    ),
    (
        "- **vessel**: Petrel\n- **crew**: 11",
        obj({"vessel": S, "crew": INT}),
        {"vessel": "Petrel", "crew": 11},
    ),
    (
        "| crop | hectares |\n|---|---|\n| wheat | 12 |\n| beet | 5 |",
        arr(obj({"crop": S, "hectares": N})),
        [{"crop": "wheat", "hectares": 12}, {"crop": "beet", "hectares": 5}],
    ),
    (
        'Конечно! Вот ответ:\n{"город": "Казань", "дней": 3} 😊',
        "object",
        {"город": "Казань", "дней": 3},
    ),
]

XML: list[tuple[str, Any]] = [
    (
        "Here is the order:\n\n```xml\n<order>\n  <id>881</id>\n  <item>rope</item>\n  <item>hook</item>\n</order>\n```\nAnything else?",
        {"order": {"id": "881", "item": ["rope", "hook"]}},
    ),
    (
        '<?xml version="1.0" encoding="UTF-8"?>\n<note><to>Ewa</to><text>Back at noon</text></note>',
        {"note": {"to": "Ewa", "text": "Back at noon"}},
    ),
    (
        "<think>Use the <b>short</b> form.</think><visit><ward>C2</ward><pulse>71</pulse></visit>",
        {"visit": {"ward": "C2", "pulse": "71"}},
    ),
    (
        "<firm><name>Hart &amp; Lowe</name><city>Saint-L&#244;</city></firm>",
        {"firm": {"name": "Hart & Lowe", "city": "Saint-Lô"}},
    ),
    (
        "<review><file>a.c</file><code><![CDATA[if (x < 3 && y > 1) return;]]></code></review>",
        {"review": {"file": "a.c", "code": "if (x < 3 && y > 1) return;"}},
    ),
    ("<unit><name>R&D</name><head>Sol</head></unit>", {"unit": {"name": "R&D", "head": "Sol"}}),
    (
        "<rule><if>temp < 4</if><then>close vents</then></rule>",
        {"rule": {"if": "temp < 4", "then": "close vents"}},
    ),
    (
        "<farm><!-- two barns only --><barn>north</barn><barn>mill</barn></farm>",
        {"farm": {"barn": ["north", "mill"]}},
    ),
    (
        "<trip><leg><from>Graz</from><to>Linz</to></leg><leg><from>Linz</from><to>Passau</to></leg></trip>",
        {"trip": {"leg": [{"from": "Graz", "to": "Linz"}, {"from": "Linz", "to": "Passau"}]}},
    ),
    (
        "<recipe><title>Borscht</title><step>Grate the beets</step><step>Simmer for an ho",
        {"recipe": {"title": "Borscht", "step": ["Grate the beets", "Simmer for an ho"]}},
    ),
    (
        "<game><board><size>19</size></board><komi>6.5</komi>",
        {"game": {"board": {"size": "19"}, "komi": "6.5"}},
    ),
    ("<書籍><題名>雪の道</題名><頁>212</頁></書籍>", {"書籍": {"題名": "雪の道", "頁": "212"}}),
    (
        "<result>\n  <label>safe</label>\n  <valid>true</valid>\n  <count>007</count>\n</result>\n\nNo rule was broken.",
        {"result": {"label": "safe", "valid": "true", "count": "007"}},
    ),
    ("<song><title>Tide</title><key>D</song>", {"song": {"title": "Tide", "key": "D"}}),
    (
        "<Claim><Party>Ruiz</Party><Sum>400</sum></claim>",
        {"Claim": {"Party": "Ruiz", "Sum": "400"}},
    ),
]

REFUSED: list[tuple[str, Any]] = [
    ("The average is 3.7", "integer"),
    ("1", "boolean"),
    ("1,5", "number"),
    ("", "object"),
    (
        "I'm sorry, but I can't read the scanned page well enough to extract the data.",
        obj({"name": S, "date": S}),
    ),
    ("<think>The lease began in May, so the notice period would be", obj({"months": INT})),
    ('{"patient": "Y. Sato", "pulse": 80}', obj({"patient": S, "pulse": INT, "ward": S})),
    ('{"tags": "urgent", "id": 4}', obj({"tags": arr(S), "id": INT})),
    ('{"plot": 12, "crop": "peas"}', obj({"plot": S, "crop": S})),
    ("It could be phishing or just an advert.", enum("phishing", "advert", "clean")),
    ("This message is not spam.", enum("spam", "scam", "clean")),
    ('{"colour": "mauve"}', obj({"colour": enum("red", "green", "blue")})),
    ("Somewhere between 5 and 10", "integer"),
    ("That depends on the jurisdiction.", "boolean"),
    ("Yes and no.", "boolean"),
    ('[4, "several", 9]', arr(INT)),
    ('[{"leg": 1, "km": 40}, {"leg": 2}]', arr(obj({"leg": INT, "km": N}))),
    ('{"floor": null, "door": "left"}', obj({"floor": INT, "door": S})),
    ('{"kind": "triangle", "side": 3}', SHAPE),
    ('{"kind": "circle", "width": 3, "height": 2}', SHAPE),
    ('{"hotel": "Seeblick", "nig', obj({"hotel": S, "nights": INT})),
    ('{"product": "drill", "price": 12', obj({"product": S, "price": N})),
    ("N/A", "number"),
    ("2029-11-03", "integer"),
    ('{"author": ["Lind", "Roy"], "year": 1999}', obj({"author": S, "year": INT})),
    ('{"apples": 12, "pears": 7}', "integer"),
    ('{"protocol": "v1", "body": "hi"}', obj({"protocol": const("v2"), "body": S})),
    ('{"armed": 0, "zone": 2}', obj({"armed": B, "zone": INT})),
    ('{"count": true}', obj({"count": INT})),
    (
        '{"name": "Bea", "address": "12 Elm Row"}',
        obj({"name": S, "address": obj({"street": S, "no": INT})}),
    ),
    ('["ewe", null, "ram"]', "string[]"),
    ('{"rye": 4.1, "hops": "unknown"}', {"type": "object", "additionalProperties": N}),
]
