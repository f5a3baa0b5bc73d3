"""Sampling settings of profiles and templates: what a server receives, what is refused, what is recorded."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    LiteLLMBackend,
    Message,
    ModelRequest,
    OpenAICompatibleBackend,
    TaskError,
    TaskStore,
    TemplateLibrary,
)
from evaluator.batch.identity import handler_settings
from evaluator.handler.config import read_profile
from evaluator.models.cache_store import CacheKey
from evaluator.nodes.sampling import SAMPLING, check_extra_body, read_stop
from evaluator.testing import Answer, LoopbackServer
from evaluator.xml.write import to_xml

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PROFILE = """<handler name="p"><model>openai/m</model><temperature>0.5</temperature><seed>7</seed><top_p>0.9</top_p>
<top_k>40</top_k><stop>["\\n\\n", "Question:"]</stop>
<extra_body>{"min_p": 0.05, "chat_template_kwargs": {"enable_thinking": false}}</extra_body></handler>"""
OF_PROFILE = {
    "temperature": 0.5,
    "seed": 7,
    "top_p": 0.9,
    "top_k": 40,
    "stop": ["\n\n", "Question:"],
    "min_p": 0.05,
    "chat_template_kwargs": {"enable_thinking": False},
}
STATED = """<handler temperature="{{ t }}" top_p="1" top_k="1" seed="3" stop="END " extra_body='{"min_p": 0, "min_tokens": 0}'/>"""
OF_TEMPLATE = {
    **OF_PROFILE,
    "temperature": 0.0,
    "seed": 3,
    "top_p": 1.0,
    "top_k": 1,
    "stop": ["END "],
    "min_p": 0,
    "min_tokens": 0,
}


def template(handler: str) -> str:
    return (
        f'<task name="ask" type="atomic"><description>Ask {{{{ t }}}}</description>{handler}'
        '<inputs><input name="t" type="number"/></inputs></task>'
    )


def run(
    library: TemplateLibrary, profile: HandlerConfig, backend: Any, tasks: Path | None = None
) -> Any:
    async def evaluate() -> Any:
        try:
            return await Evaluator(library, profile, backend=backend, tasks_dir=tasks).evaluate(
                "ask", {"t": 0}
            )
        finally:
            await backend.aclose()

    return asyncio.run(evaluate())


@pytest.mark.parametrize("wire", [OpenAICompatibleBackend, LiteLLMBackend])
@pytest.mark.parametrize(("handler", "sent"), [("", OF_PROFILE), (STATED, OF_TEMPLATE)])
def test_a_server_receives_the_settings_of_the_profile_and_those_of_the_template_instead(
    wire, handler, sent, tmp_path
):
    (tmp_path / "p.xml").write_text(PROFILE)
    library = TemplateLibrary()
    library.add(template(handler))
    with LoopbackServer(Answer("fine")) as server:
        run(
            library,
            read_profile(tmp_path / "p.xml")[0],
            wire(base_url=server.base_url, api_key="k"),
            tmp_path / "t",
        ).unwrap()
        (body,) = server.bodies
    assert {
        name: value for name, value in body.items() if name not in ("model", "messages")
    } == sent
    (step,) = (
        step for step in TaskStore(tmp_path / "t").read(1).steps if step.start.kind == "model"
    )
    extra = {name: sent[name] for name in sent if name not in SAMPLING}
    own = {name: sent[name] for name in sent if name in SAMPLING}
    assert step.start.args["settings"] == {**own, "extra_body": extra}


@pytest.mark.parametrize("model", ["anthropic/claude-x", "gemini/gemini-x", "bedrock/x"])
def test_litellm_sends_extra_fields_on_the_wire_of_chat_completions_only(model):
    library = TemplateLibrary()
    library.add(template(""))
    profile = HandlerConfig(name="p", model=model, extra_body={"contents": "x"})
    with LoopbackServer(default=Answer("fine")) as server:
        failed = run(library, profile, LiteLLMBackend(base_url=server.base_url, api_key="k"))
        assert server.posts == 0
    assert isinstance(failed, TaskError)
    assert "extra_body is for an OpenAI-compatible server" in failed.message


def test_litellm_sends_extra_fields_to_a_server_of_the_profile_only():
    library = TemplateLibrary()
    library.add(template(""))
    profile = HandlerConfig(name="p", model="anthropic/claude-x", extra_body={"min_p": 0.1})
    failed = run(library, profile, LiteLLMBackend(api_key="k"))
    assert isinstance(failed, TaskError)
    assert failed.reason == "provider_failure"
    assert "base_url" in failed.message
    assert failed.maybe_billed is False


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "messages",
        "stream",
        "tools",
        "tool_choice",
        "api_key",
        "api_base",
        "extra_headers",
        "max_tokens",
        "n",
        "temperature",
        "stop",
        "extra_body",
        "Model",
        "STREAM",
        "mode\u017f",
        "service_tier",
        "custom_logit_processor",
    ],
)
def test_extra_fields_cannot_change_what_is_asked_who_is_asked_and_what_it_costs(name):
    with pytest.raises(
        ValueError, match=r"has a setting of its own|cannot be set here|not the name of a field"
    ):
        check_extra_body({name: "x"})
    with pytest.raises(ConfigurationError, match="profile 'p'"):
        HandlerConfig(name="p", extra_body={name: "x"})
    library = TemplateLibrary()
    written = json.dumps({name: "x"}).replace('"', "&quot;")
    with pytest.raises(Exception, match="extra_body"):
        library.add(template(f'<handler extra_body="{written}"/>'))


def test_the_body_keeps_its_own_fields_whatever_a_python_caller_passes():
    from evaluator.models.chat_wire import request_body

    request = ModelRequest("m", (Message("user", "x"),), extra_body={"model": "other", "min_p": 1})
    assert request_body(request) == {
        "model": "m",
        "min_p": 1,
        "messages": [{"role": "user", "content": "x"}],
    }


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ('temperature="-1"', "temperature must be a number of at least 0"),
        ('top_p="1.5"', "top_p must be a number above 0 and at most 1"),
        ('top_k="1.5"', "whole number"),
        ('seed="x"', "whole number"),
        ('stop=""', "stop: expected a text"),
        ('stop="[1]"', "stop: expected a text"),
        ('stop="{{ t }}"', "stop: it is taken as it is written"),
        ("extra_body='{'", "extra_body: expected a JSON object"),
        ("""extra_body='{"a": "<<t>>"}'""", "extra_body: it is taken as it is written"),
        ("extra_body='[]'", "extra_body: expected a JSON object"),
        ("extra_body='{\"x\": NaN}'", "extra_body: not a JSON value"),
        ('extra_body=\'{"model": "m"}\'', "extra_body: model cannot be set here"),
    ],
)
def test_lint_names_the_place_of_a_setting_that_is_not_valid(attribute, words, tmp_path):
    text = f'<task name="ask" type="atomic">\n<description>Ask {{{{ t }}}}</description>\n<handler  {attribute}/>\n'
    (tmp_path / "a.xml").write_text(text + '<inputs><input name="t"/></inputs></task>')
    errors = [
        one
        for one in TemplateLibrary.load(tmp_path, shipped=False).errors
        if one.severity == "error"
    ]
    (found,) = errors[:1]
    assert (found.span.line, words in found.message) == (3, True), found
    assert found.span.column == len("<handler  ") + attribute.index("=") + 3, (
        "the place of the value"
    )


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ("<top_p>0</top_p>", "top_p"),
        ("<top_k>-1</top_k>", "top_k"),
        ("<stop/>", "<stop>: expected a text"),
        ('<extra_body>{"stream": true}</extra_body>', "<extra_body>: stream cannot be set here"),
        ("<extra_body>x</extra_body>", "<extra_body>: expected a JSON object"),
    ],
)
def test_a_profile_with_a_setting_that_is_not_valid_is_refused_with_its_place(
    element, words, tmp_path
):
    (tmp_path / "p.xml").write_text(f'<handler name="p">\n  {element}\n</handler>')
    with pytest.raises(ConfigurationError) as caught:
        read_profile(tmp_path / "p.xml")
    assert "p.xml:2:" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("\n\n", ("\n\n",)),
        ("Q:", ("Q:",)),
        ('["a", "b "]', ("a", "b ")),
        ("[END]", ("[END]",)),
        (' ["]"] ', ("]",)),
    ],
)
def test_stop_is_one_text_or_a_list_of_texts(text, texts):
    assert read_stop(text) == texts


@pytest.mark.parametrize("stop", ["END", ("",), (1,), b"END"])
def test_a_python_caller_gives_stop_as_several_texts(stop: Any):
    with pytest.raises(ConfigurationError, match="stop"):
        HandlerConfig(name="p", stop=stop)
    texts: Any = ["END"]
    assert HandlerConfig(name="p", stop=texts).stop == ("END",)


def test_a_template_with_sampling_settings_is_written_back():
    library = TemplateLibrary()
    library.add(template("""<handler top_k="5" stop="&#10;" extra_body='{"a": "é"}'/>"""))
    again = TemplateLibrary()
    again.add(to_xml(library.get("ask").node))
    spec = again.get("ask").node.handler
    assert (spec.top_k, spec.stop, spec.extra_body) == (5, ("\n",), {"a": "é"})


@pytest.mark.parametrize(
    "change",
    [
        {"top_p": 0.5},
        {"top_k": 3},
        {"stop": ("x",)},
        {"extra_body": {"min_p": 1}},
        {"temperature": 1.0},
        {"seed": 1},
    ],
)
def test_every_setting_is_part_of_the_cache_key_and_of_the_identity_of_a_batch(change):
    request = ModelRequest("m", (Message("user", "x"),))
    keys = [
        CacheKey.of(one, endpoint="e", epoch=1) for one in (request, replace(request, **change))
    ]
    assert keys[0].key != keys[1].key
    assert next(iter(change)) in keys[1].differences(keys[0])[0]
    before, after = (handler_settings(HandlerConfig(**one), "m", {}, ()) for one in ({}, change))
    assert before != after


def test_settings_that_are_not_set_leave_the_identity_of_older_batches_as_it_was():
    assert (
        not {"top_p", "top_k", "stop", "extra_body"}
        & handler_settings(HandlerConfig(), "m", {}, ()).keys()
    )
