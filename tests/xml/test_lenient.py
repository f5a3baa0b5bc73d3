"""Lenient reading: what is read from a model's text, with which warnings, in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.xml.lenient import MAX_MARKUP, read_elements, read_tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<a>1</a>", {"a": "1"}),
        ("<a/>", {"a": None}),
        (
            '<?xml version="1.0"?><r><x>1</x><x>2</x><y k="&lt;v">t</y><e/><!-- c --></r>',
            {"r": {"x": ["1", "2"], "y": {"@k": "<v", "#text": "t"}, "e": None}},
        ),
        ("<r><![CDATA[<b> & </b>]]></r>", {"r": "<b> & </b>"}),
        ("<r>a &amp; &#233;</r>", {"r": "a & é"}),
    ],
)
def test_valid_xml_is_read_without_a_warning(text, value):
    found = read_elements(text)
    assert (found.value, found.warnings, found.error, found.text) == (value, (), None, text)


@pytest.mark.parametrize(
    ("text", "value", "warning"),
    [
        ("Sure!\n```xml\n<r>1</r>\n```\nBye", {"r": "1"}, "outside"),
        ("Use `<a>`: <a>x</a>", {"a": "x"}, "outside"),
        (
            "<p><name>Bob<age>3</age></p>",
            {"p": {"name": "Bob", "age": "3"}},
            "<name> is not closed",
        ),
        ("<l><i>a<i>b</l>", {"l": {"i": ["a", "b"]}}, "<i> is not closed"),
        ("<r>1</x></r>", {"r": "1"}, "</x> closes nothing"),
        ("<r>a & b</r>", {"r": "a & b"}, "bare `&`"),
        ("<r>a < b</r>", {"r": "a < b"}, "bare `<`"),
        ("<r>a<<<b</r>", {"r": "a<<<b"}, "bare `<`"),
        ("<r>&nbsp;x&foo;</r>", {"r": "x&foo;"}, "&foo; is not known"),
        ("<r><a>cut", {"r": {"a": "cut"}}, "cut off"),
        ('<r>x<a k="1', {"r": "x"}, "tag cut off"),
        ("<r><![CDATA[x", {"r": "x"}, "CDATA"),
        ("```xml\n<r>a\n```\nHope it helps", {"r": "a"}, "closing fence"),
        ("<r x=1 y/>", {"r": {"@x": "1", "@y": ""}}, "without quotes"),
        ("<a>1</a><b>2</b>", {"a": "1", "b": "2"}, "without a common root"),
        ("<think><a>1</a></think><a>2</a>", {"a": "2"}, "reasoning"),
        ("<a>1</a> hm</think><a>2</a>", {"a": "2"}, "reasoning"),
        (
            "<a>2</a><!DOCTYPE a [<!ENTITY x 'y'>]><b>&x;</b>",
            {"a": "2", "b": "&x;"},
            "document type",
        ),
    ],
)
def test_invalid_xml_is_read_with_a_warning(text, value, warning):
    found = read_elements(text)
    assert found.value == value
    assert any(warning in one for one in found.warnings)
    assert found.text == text


@pytest.mark.parametrize("text", ["", "no element", "1 < 2", "<", "<think><a>1</a>"])
def test_text_without_elements_is_kept_and_an_error(text):
    found = read_elements(text)
    assert (found.value, found.text) == (None, text)
    assert found.error


@given(
    st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "<a>",
                "</a>",
                "\n",
                "x ",
                "<b k='1'/>",
                "`",
                "```\n",
                "<![CDATA[",
                "]]>",
            ]
        )
    )
)
def test_the_place_of_each_element_is_its_place_in_the_text(parts):
    text = "".join(parts)
    waiting = list(read_tree(text).roots)
    for element in waiting:
        assert text.startswith(f"<{element.name}", element.start)
        assert element.end is None or text[element.end - 1] == ">"
        waiting += element.children


HOSTILE = {
    "opened": "<a>" * 330_000,
    "less": "<" * 10**6,
    "quotes": '<a "' * 250_000,
    "comments": "<!--" * 250_000,
    "cdata": "<![CDATA[" * 110_000,
    "doctypes": "<!DOCTYPE [>" * 80_000,
    "closed": "<a>" * 100 + "</b>" * 200_000,
    "mixed": "<r>" + "<a>x<b>y</a>" * 80_000,
    "placeholders": "<<a" * 330_000,
    "attributes": "<a" + " b=" * 300_000,
    "thoughts": "<think>" * 140_000,
    "references": "<a>" + "&" * 10**6,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_of_hostile_text_is_read(name):
    assert read_elements(HOSTILE[name]).text == HOSTILE[name]


def test_there_is_one_warning_for_each_kind_of_repair_however_many_names() -> None:
    read = read_elements("<r>" + "".join(f"&e{n};<a{n}></b{n}>" for n in range(90)) + "</r>")
    assert len(read.warnings) == 3
    assert any("&e0; is not known" in warning and "89 more" in warning for warning in read.warnings)


def test_the_work_on_a_text_of_tags_is_bounded() -> None:
    read = read_elements("<r>" + "<a/>" * (MAX_MARKUP + 5))
    assert len(read.value["r"]["a"]) == MAX_MARKUP - 1
    assert any("rest read as text" in warning for warning in read.warnings)
