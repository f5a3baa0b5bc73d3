"""Policies: rules on arguments, and consent to the change that was shown."""

import asyncio
import json

import pytest

from evaluator import ConfigurationError, Tool, ToolError, ToolSpec
from evaluator.files.roots import Roots
from evaluator.tools import (
    CallbackAsker,
    FileAccess,
    PolicyRule,
    ToolContext,
    ToolRegistry,
    builtin_tools,
)
from evaluator.tools.policy import decide

DENY_SECRETS = PolicyRule("deny", "path", "secrets/*")
GIT_STATUS = PolicyRule("allow", "command", "git status*")


@pytest.fixture
def root(tmp_path):
    inside = tmp_path / "root"
    (inside / "secrets").mkdir(parents=True)
    (inside / "src").mkdir()
    (inside / "secrets" / "key").write_text("secret")
    (inside / "src" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "alias").symlink_to(inside)
    return inside


def decided(rule, value, *roots, otherwise="ask"):
    return decide([rule], otherwise, {rule.argument: value}, Roots(roots))


@pytest.mark.parametrize(
    "path",
    [
        "secrets/key",
        "./secrets/key",
        "secrets//key",
        "secrets/./key",
        "src/../secrets/key",
        "x/y/../../secrets/key",
        "secrets/../secrets/deep/er",
        "secrets",
        "secrets/",
        "./secrets/.",
        "secrets/new/",
        "SECRETS/key",
        "Secrets/KEY",
        "\uff53ecrets/key",
        "{root}/secrets/key",
        "{root}/src/../secrets/key",
        "{root}//secrets/key",
        "/{root}/secrets/key",
        "{root}/../root/secrets/key",
        "{alias}/secrets/key",
        "secrets/a\nb",
        "../root/secrets/key",
    ],
)
@pytest.mark.parametrize("named", ["root", "alias"])
@pytest.mark.parametrize("pattern", ["secrets/*", "{root}/secrets/*"])
def test_no_spelling_of_a_path_evades_a_denial(root, path, named, pattern):
    where = {"root": root, "alias": root.parent / "alias"}
    value = path.format(**where)
    if (path.startswith("{alias}") and named == "root") or (
        path.startswith("../root") and pattern.startswith("s")
    ):
        with pytest.raises(
            ToolError
        ):  # it leads out of the root as it was named: refused whatever the policy says
            FileAccess([where[named]]).read_bytes(value)
        return
    assert (
        decided(
            PolicyRule("deny", "path", pattern.format(**where)),
            value,
            where[named],
            otherwise="allow",
        )
        == "deny"
    )


@pytest.mark.parametrize(
    "path", ["src/a.txt", "notsecrets/key", "secrets.txt", "src/secrets/key", "secrets/../src/a"]
)
def test_other_paths_are_left_to_the_tools_policy(root, path):
    assert decided(DENY_SECRETS, path, root, otherwise="allow") == "allow"


@pytest.mark.parametrize(
    ("pattern", "path", "policy"),
    [
        ("src/*", "src/a.txt", "allow"),
        ("src/*", "./src//deep/../a.txt", "allow"),
        ("src/*", "{root}/src/a.txt", "allow"),
        ("{root}/src/*", "src/a.txt", "allow"),
        ("src/*", "src/../secrets/key", "ask"),
        ("src/*", "src/../../elsewhere", "ask"),
        ("src/*", "SRC/a.txt", "ask"),
        ("src/*", "src", "ask"),
        ("src/*", "/elsewhere/src/a.txt", "ask"),
        ("*", "anything", "allow"),
    ],
)
def test_an_allowed_path_is_matched_exactly(root, pattern, path, policy):
    assert (
        decided(
            PolicyRule("allow", "path", pattern.format(root=root)), path.format(root=root), root
        )
        == policy
    )


def test_with_several_roots_a_path_is_allowed_only_if_it_is_in_all_that_it_may_lie_in(
    root, tmp_path
):
    inner = root / "src"
    path = str(inner / "a.txt")
    assert decided(PolicyRule("allow", "path", "a.txt"), path, root, inner) == "ask"
    assert decided(PolicyRule("deny", "path", "a.txt"), path, root, inner) == "deny"
    assert decided(PolicyRule("allow", "path", "*a.txt"), path, root, inner) == "allow"
    assert decided(PolicyRule("allow", "path", f"{root}/*"), "x", root, tmp_path / "other") == "ask"


@pytest.mark.parametrize(
    ("rule", "value", "policy"),
    [
        (GIT_STATUS, ["git", "status"], "allow"),
        (GIT_STATUS, ["git", "status", "--short"], "allow"),
        (GIT_STATUS, ["git", "push"], "ask"),
        (GIT_STATUS, ["/tmp/git", "status"], "ask"),
        (GIT_STATUS, ["sh", "-c", "git status"], "ask"),
        (GIT_STATUS, ["git status"], "ask"),
        (GIT_STATUS, ["git status/run"], "ask"),
        (GIT_STATUS, "git status", "allow"),
        (GIT_STATUS, [], "ask"),
        (PolicyRule("allow", "command", "git status"), ["git", "status", "--short"], "ask"),
        (PolicyRule("deny", "command", "*--force*"), ["git", "push", "--force-with-lease"], "deny"),
        (PolicyRule("deny", "command", "git push*"), ["git push", "x"], "deny"),
        (PolicyRule("deny", "command", "*"), [], "deny"),
        (PolicyRule("deny", "text", "*a*"), "x\na\ny", "deny"),
        (PolicyRule("allow", "number", "1?"), 12, "allow"),
        (PolicyRule("allow", "flag", "true"), True, "allow"),
        (PolicyRule("deny", "table", '{"a": *'), {"a": [1]}, "deny"),
        (PolicyRule("deny", "text", "*"), None, "ask"),
        (PolicyRule("deny", "file_path", "secrets/*"), "./secrets/key", "deny"),
        (PolicyRule("deny", "paths", "secrets/*"), ["a", "./secrets/key"], "deny"),
        (PolicyRule("allow", "file_paths", "src/*"), ["src/a", "./src/b"], "allow"),
        (PolicyRule("allow", "file_paths", "src/*"), ["src/a", "b"], "ask"),
        (PolicyRule("allow", "file_paths", "src/*"), [], "ask"),
    ],
)
def test_an_argument_is_matched_as_text(rule, value, policy):
    assert decided(rule, value) == policy


def test_the_first_rule_that_matches_decides_and_a_missing_argument_matches_none():
    rules = [
        PolicyRule("deny", "a", "x*"),
        PolicyRule("allow", "a", "*y"),
        PolicyRule("ask", "b", "*"),
    ]
    places = Roots([])
    for arguments, policy in [
        ({"a": "xy"}, "deny"),
        ({"a": "ay", "b": "z"}, "allow"),
        ({"a": "z", "b": "z"}, "ask"),
        ({"a": "z"}, "deny"),
        ({}, "deny"),
    ]:
        assert decide(rules, "deny", arguments, places) == policy


def ruled(name, *rules, policy=None, asker=None, root=None, **arguments):
    tool = builtin_tools().get(name)
    changed = Tool(
        tool.spec,
        tool.run,
        policy=policy or tool.policy,
        rules=rules,
        preview=tool.preview,
        retryable=tool.retryable,
    )
    context = ToolContext(roots=FileAccess([root]), asker=asker)
    return asyncio.run(ToolRegistry([changed]).call(name, json.dumps(arguments), context))


def test_rules_hold_for_a_call(root):
    assert ruled("read_file", DENY_SECRETS, root=root, path="src/a.txt").content == "one\ntwo\n"
    refused = ruled("read_file", DENY_SECRETS, root=root, path="./secrets//key")
    assert (refused.code, "policy deny" in refused.content) == ("denied", True)
    assert ruled("run_script", GIT_STATUS, root=root, command=["git", "push"]).code == "denied"
    write = PolicyRule("allow", "path", "src/*")
    assert ruled("write_file", write, root=root, path="src/b.txt", content="x").ok
    assert ruled("write_file", write, root=root, path="b.txt", content="x").code == "denied"


def test_a_missing_argument_is_matched_by_its_default(root):
    assert ruled("list_files", PolicyRule("deny", "path", "."), root=root).code == "denied"
    assert ruled("list_files", PolicyRule("deny", "path", "."), root=root, path="src").ok
    assert ruled("list_files", PolicyRule("deny", "pattern", "*"), root=root).ok


def test_a_rule_that_can_never_match_is_an_error():
    tool = builtin_tools().get("run_script")
    with pytest.raises(
        ConfigurationError, match="argument 'path'; the tool's are: command, stdin, timeout_s"
    ):
        ToolRegistry([Tool(tool.spec, tool.run, rules=(DENY_SECRETS,))])
    open_schema = ToolSpec("made", "", {"type": "object", "properties": {"a": True}})
    assert len(ToolRegistry([Tool(open_schema, tool.run, rules=(DENY_SECRETS,))])) == 1
    for wrong in (("sometimes", "a", "b"), ("deny", "", "b"), ("deny", "a", "")):
        with pytest.raises(ConfigurationError):
            PolicyRule(*wrong)


def consenting(root, name, answer="y", **arguments):
    asked = []

    def reply(question):
        asked.append(question)
        return answer if isinstance(answer, str) else answer()

    return ruled(name, root=root, asker=CallbackAsker(reply), **arguments), asked


QUESTIONS = [
    (
        "write_file",
        {"path": "new/b.txt", "content": "x\n\x1b[2J"},
        'Allow write_file?\n"new/b.txt": a new file\n@@ from line 1 @@\n+x\n+\\x1b[2J  (no line feed at the end)\n[y/N]',
    ),
    (
        "write_file",
        {"path": "src/a.txt", "content": "one\n2\n"},
        'Allow write_file?\n"src/a.txt": replaces the file\n@@ from line 1 @@\n one\n-two\n+2\n[y/N]',
    ),
    (
        "write_file",
        {"path": "src/a.txt", "content": "one\ntwo\n"},
        'Allow write_file?\n"src/a.txt": replaces the file by the same text\n\n[y/N]',
    ),
    (
        "edit_file",
        {"path": "src/a.txt", "old": "two", "new": "2\r"},
        'Allow edit_file?\n"src/a.txt": edits the file\n@@ from line 1 @@\n one\n-two\n+2\\r\n[y/N]',
    ),
    (
        "delete_file",
        {"path": "src/a.txt"},
        'Allow delete_file?\n"src/a.txt": deletes this file\n[y/N]',
    ),
]


@pytest.mark.parametrize(("name", "arguments", "question"), QUESTIONS)
@pytest.mark.parametrize("answer", ["y", "n"])
def test_the_question_shows_the_effect_of_the_call(root, name, arguments, question, answer):
    before = sorted((path, path.is_file() and path.read_text()) for path in root.rglob("*"))
    outcome, asked = consenting(root, name, answer, **arguments)
    assert asked == [question]
    assert outcome.ok is (answer == "y")
    if answer == "n":
        assert (
            sorted((path, path.is_file() and path.read_text()) for path in root.rglob("*"))
            == before
        )


def test_the_question_names_a_change_of_encoding_and_content_that_cannot_be_shown(root):
    (root / "old").write_bytes("one\n".encode("utf-16"))
    (root / "bin").write_bytes(b"\0\1")
    assert (
        "it was utf-16 and will be utf-8"
        in consenting(root, "write_file", path="old", content="one\n")[1][0]
    )
    assert (
        "2 bytes that is not shown"
        in consenting(root, "write_file", path="bin", content="one\n")[1][0]
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("edit_file", {"path": "src/a.txt", "old": "none", "new": ""}),
        ("write_file", {"path": "src/a.txt", "content": "", "create_only": True}),
        ("delete_file", {"path": "src"}),
        ("write_file", {"path": "../x", "content": ""}),
    ],
)
def test_a_call_that_cannot_succeed_does_not_ask(root, name, arguments):
    outcome, asked = consenting(root, name, **arguments)
    assert (outcome.ok, outcome.code, asked) == (False, "failed", [])


def test_a_call_that_is_too_long_to_show_does_not_ask(root):
    outcome, asked = consenting(root, "write_file", path="b", content="x\n" * 20_000)
    assert (outcome.code, asked, (root / "b").exists()) == ("denied", [], False)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("write_file", {"path": "src/a.txt", "content": "1\n"}),
        ("edit_file", {"path": "src/a.txt", "old": "one", "new": "1"}),
    ],
)
def test_consent_is_void_if_the_file_changed_in_the_meantime(root, name, arguments):
    def change():
        (root / "src" / "a.txt").write_text("one\nmore\n")
        return "y"

    outcome, _ = consenting(root, name, change, **arguments)
    assert (outcome.code, "changed while" in outcome.content) == ("denied", True)
    assert (root / "src" / "a.txt").read_text() == "one\nmore\n"
