"""Reading: what is refused and where, and the exact place of every character."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import TemplateError
from evaluator.xml.source import Limits, read_file, read_source
from tests.tables import each_case

CDATA_OPEN, CDATA_CLOSE = "<![CDATA[", "]]>"


def failure(data, **options):
    with pytest.raises(TemplateError) as caught:
        read_source(data, "f.xml", **options)
    (found,) = caught.value.diagnostics
    assert found.severity == "error"
    return found


@each_case(
    ("data", "code", "line", "column", "words"),
    [
        (b"", "empty", 1, 1, "empty"),
        (" \n ", "empty", 1, 1, "empty"),
        ("<!-- x -->\n <!DOCTYPE a>\n<a/>", "doctype", 2, 2, "document type"),
        ('<?xml version="1.0"?><!doctype a><a/>', "doctype", 1, 22, "document type"),
        ("<a><b></a>", "not-well-formed", 1, 4, "<b> is not closed before </a>"),
        ("<a>\n</b>", "not-well-formed", 2, 1, "</b> does not match <a>"),
        ("<a>\n\t{% if a < b %}</a>", "not-well-formed", 2, 10, "inside {% … %}"),
        ("<a>{% if a <b %}x{% endif %}</a>", "not-well-formed", 1, 12, "inside {% … %}"),
        ("<a>{{ a && b }}</a>", "not-well-formed", 1, 9, "inside {{ … }}"),
        ('<a t="x < y"/>', "not-well-formed", 1, 9, "attribute value"),
        ('<a t="x>\n</a>', "not-well-formed", 1, 6, "no closing quote"),
        ("<a>😀é & y</a>", "not-well-formed", 1, 7, "bare `&`"),
        ("<a><!-- <b> or\n --c --></a>", "not-well-formed", 2, 2, "`--` inside a comment"),
        ("<!-- b ---><a/>", "not-well-formed", 1, 8, "`--` inside a comment"),
        ("<a><!-- b -->--< c</a>", "not-well-formed", 1, 16, "bare `<`"),
        ("<a>&nbsp;</a>", "not-well-formed", 1, 4, "&nbsp;"),
        ("<a>&#0;</a>", "not-well-formed", 1, 4, "&#0;"),
        ("<a>\r\n<<x</a>", "unclosed-placeholder", 2, 1, "`<<`"),
        ('<a b="<<x"/>', "unclosed-placeholder", 1, 7, "`<<`"),
        ('<a b="1"\n b="2"/>', "not-well-formed", 2, 2, "twice"),
        ("<a b=1/>", "not-well-formed", 1, 4, "not an attribute"),
        ("<a/><b/>", "not-well-formed", 1, 5, "second root"),
        ("<a>x", "not-well-formed", 1, 1, "never closed"),
        ("<a/>x", "not-well-formed", 1, 5, "after the root"),
        ("x", "not-well-formed", 1, 1, "before the root"),
        ("<a>]]></a>", "not-well-formed", 1, 4, "]]>"),
        ("<a>\x01</a>", "not-well-formed", 1, 4, "U+0001"),
        ("<a>\x00</a>", "not-well-formed", 1, 4, "U+0000"),
        ("<a>\ud800</a>", "encoding", 1, 4, "U+D800"),
        ("<a><!-- <b/>", "not-well-formed", 1, 4, "comment is never closed"),
        ("<a><?x ", "not-well-formed", 1, 4, "processing instruction is never closed"),
        ("<a><b/><![CDATA[x</a>", "not-well-formed", 1, 8, "CDATA section is never closed"),
        ("<a/></b>", "not-well-formed", 1, 5, "</b> closes nothing"),
        ("<a/>&amp;", "not-well-formed", 1, 5, "after the root"),
        ("é😀<a/>", "not-well-formed", 1, 1, "before the root"),
        ('"<a>', "not-well-formed", 1, 1, "before the root"),
        ("<a b='1' c='&x;'/>", "not-well-formed", 1, 13, "&x; is not defined"),
        ("<a>&am", "not-well-formed", 1, 4, "bare `&`"),
        ("<a>x < b</a>", "not-well-formed", 1, 6, "bare `<`"),
        ("<a b='1'c='2'/>", "not-well-formed", 1, 9, "not an attribute"),
        ("<a></a x>", "not-well-formed", 1, 8, "<a> has something"),
        ("<a <b/></a>", "not-well-formed", 1, 1, "does not end with `>`"),
        (" <?xml version='1.0'?><a/>", "not-well-formed", 1, 2, "beginning of the file"),
        ("<!-- x -->", "not-well-formed", 1, 1, "no element"),
        ("<x:a/>", "not-well-formed", 1, 1, "unbound prefix"),
        ('<a b="<<x" c=">>"/>', "unclosed-placeholder", 1, 7, "`<<`"),
        (b"<a>\n\xc3\xa9\xff</a>", "encoding", 2, 2, "0xff at offset 6"),
        (b'<?xml version="1.0" encoding="nope"?><a/>', "encoding", 1, 1, "'nope'"),
        (b'<?xml version="1.0" encoding="punycode"?><a/>', "encoding", 1, 1, "'punycode'"),
        ("<a/>".encode("utf-16-le"), "encoding", 1, 1, "byte order mark"),
    ],
)
def test_bad_text_is_refused_at_its_place(data, code, line, column, words):
    found = failure(data)
    assert (found.code, found.span.line, found.span.column) == (code, line, column)
    assert words in found.message
    assert found.span.file == "f.xml"


def test_the_hint_for_a_comparison_in_a_block_names_lt_and_cdata():
    assert "&lt;" in failure("<a>{% if a < b %}</a>").hint
    assert "CDATA" in failure("<a>{% if a < b %}</a>").hint


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        ("<a>é😀</a>".encode(), "utf-8"),
        (codecs.BOM_UTF8 + "<a>é😀</a>".encode(), "utf-8 with mark"),
        (codecs.BOM_UTF16_LE + "<a>é😀</a>".encode("utf-16-le"), "utf-16 le"),
        (codecs.BOM_UTF16_BE + "<a>é😀</a>".encode("utf-16-be"), "utf-16 be"),
    ],
)
def test_unicode_is_read(data, encoding):
    source = read_source(data)
    assert source.text_of(source.root).value == "é😀", encoding
    assert source.locate(source.root).column == 1


def test_a_declared_encoding_is_read():
    source = read_source('<?xml version="1.0" encoding="iso-8859-1"?><a>é</a>'.encode("latin-1"))
    assert source.root.text == "é"


# Attacks


def test_entities_and_external_files_are_never_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    bomb = '<!DOCTYPE a [<!ENTITY b "' + "x" * 100 + '"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'
    external = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{secret.as_uri()}">]><a>&x;</a>'
    remote = '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd"><a/>'
    for text in (bomb, external, remote):
        assert failure(text).code == "doctype"


def test_xinclude_is_refused():
    text = '<a xmlns:xi="http://www.w3.org/2001/XInclude">\n <xi:include href="/etc/hostname"/></a>'
    found = failure(text)
    assert (found.code, found.span.line, found.span.column) == ("xinclude", 2, 2)


@pytest.mark.parametrize("depth", [101, 500, 200_000])
def test_a_depth_bomb_is_refused(depth):
    assert failure("<a>" * depth + "</a>" * depth).code == "too-deep"


def test_depth_and_elements_up_to_the_limit_are_read():
    limits = Limits(max_depth=3, max_elements=4)
    assert read_source("<a><b><c/></b><d/></a>", limits=limits).root.tag == "a"
    assert failure("<a><b><c><d/></c></b></a>", limits=limits).span.column == 10
    assert failure("<a><b/><b/><b/><b/></a>", limits=limits).code == "too-many-elements"


def test_a_hundred_megabytes_are_refused(tmp_path):
    assert failure(b"<" * 20_000_000).code == "too-large"
    path = tmp_path / "big.xml"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    with pytest.raises(TemplateError, match="more than"):
        read_file(path)


@pytest.mark.parametrize(
    "text",
    [
        "<a>" + "<!--" * 200_000,
        "<a>" + "<![CDATA[" * 100_000,
        "<a b='" * 100_000,
        "<" * 900_000,
        "<a>" + "&" * 900_000,
    ],
)
def test_hostile_text_is_refused(text):
    failure(text)


def test_what_is_not_a_readable_file_is_an_error(tmp_path):
    for path in (tmp_path / "missing.xml", tmp_path, "nul\0"):
        with pytest.raises(TemplateError, match="unreadable"):
            read_file(path)


# Positions


def test_every_part_is_at_its_line_and_column():
    text = (
        '<?xml version="1.0"?>\r\n'
        "<!-- <<no>> -->\r\n"
        "<task\tname=\"a&amp;b\r\n  z<<q>>\"\r\n\ttype='x'>\r\n"
        "\t<d>\r\n\t\tHi <<name>> &lt;x&gt; 😀é\r\n\t\t  <![CDATA[<<raw>> <b>]]>!<!-- c -->end\r\n\t</d>\r\n"
        "</task>"
    )
    source = read_source(text)
    root, child = source.root, source.root[0]
    assert str(source.locate(root)) == "<string>:3:1"
    assert str(source.locate_attribute(root, "name")) == "<string>:3:13"
    assert str(source.locate_attribute(root, "type")) == "<string>:5:8"
    assert str(source.locate_attribute_name(root, "type")) == "<string>:5:2"
    assert str(source.locate(child)) == "<string>:6:2"
    name = source.attribute_text(root, "name")
    assert name.value == "a&b   z{{q}}" == root.get("name")
    assert str(name.locate(2)) == "<string>:3:19"
    assert str(name.locate(6)) == "<string>:4:3"
    body = source.text_of(child)
    assert body.value == "Hi {{name}} <x> 😀é\n  {{raw}} <b>!end"
    places = {
        word: str(body.locate(body.value.index(word)))[9:]
        for word in ("Hi", "name", "x>", "é", "<b>", "!", "end")
    }
    assert places == {
        "Hi": "7:3",
        "name": "7:8",
        "x>": "7:19",
        "é": "7:26",
        "<b>": "8:22",
        "!": "8:28",
        "end": "8:39",
    }


def test_indentation_is_removed_as_cleandoc_does_but_tabs_stay():
    cases = {
        "<a>x</a>": "x",
        "<a/>": "",
        "<a>\n\n    one\n      two\n\n    three\n  </a>": "one\n  two\n\nthree",
        "<a>first\n    second\n      third</a>": "first\nsecond\n  third",
        "<a>\n      code\n    text\n</a>": "  code\ntext",
        "<a>\n\tall:\n\t\tmake\n</a>": "all:\n\tmake",
        "<a xml:space='preserve'> x\n </a>": " x\n ",
        "<a xml:space='preserve'><b> x </b></a>": "",
    }
    for text, expected in cases.items():
        source = read_source(text)
        assert source.text_of(source.root).value == expected, text
    inherited = read_source("<a xml:space='preserve'><b> x </b><c xml:space='default'> y </c></a>")
    assert [inherited.text_of(child).value for child in inherited.root] == [" x ", "y"]


def test_a_text_that_is_longer_than_what_expat_reads_at_once_keeps_its_places():
    source = read_source("<a>\n" + ("é😀x " * 50 + "\n") * 9000 + "<b/>tail</a>")
    text = source.text_of(source.root)
    assert str(source.locate(source.root[0])) == "<string>:9002:1"
    assert str(text.locate(len(text.value) - 1)) == "<string>:9002:8"


def test_placeholders_keep_the_author_text_for_printing():
    source = read_source("<a>\n  <<x>>\n</a>")
    assert source.text == "<a>\n  <<x>>\n</a>"
    assert source.root.text.strip() == "{{x}}"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<<name>>", "{{name}}"),
        ("a <<doc.title | upper>> b", "a {{doc.title | upper}} b"),
        ("{% if a < b %}<<a>>{% endif %}", "{% if a < b %}{{a}}{% endif %}"),
        ("cat <<EOF >> out.txt", None),
        ("cat <<EOF\nx\nEOF>>y", None),
        ("cout << a >> b; 1 << 2; 1<<2>>3", None),
        ("cout<<x; v = vector<vector<int>>()", None),
    ],
)
def test_a_variable_in_cdata_is_told_from_an_operator_of_a_program(text, read):
    source = read_source(f"<a>{CDATA_OPEN}{text}{CDATA_CLOSE}</a>")
    assert source.text_of(source.root).value == (read or text)
    assert source.text == f"<a>{CDATA_OPEN}{text}{CDATA_CLOSE}</a>"


plain = st.text(st.sampled_from("ab \t\n😀é{}%'"), max_size=12)
pieces = st.one_of(
    plain.map(lambda value: (value, value, 0)),
    st.sampled_from(
        [("&lt;", "<", 0), ("&#x1F600;", "😀", 0), ("&amp;", "&", 0), ("<<v>>", "{{v}}", 0)]
    ),
    plain.map(lambda value: (f"{CDATA_OPEN}{value}{CDATA_CLOSE}", value, len(CDATA_OPEN))),
    st.sampled_from([("<!-- c\n -->", "", 0), ("<?pi x?>", "", 0), ("<i/>", "", 0)]),
)


def place(text, offset):
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


@given(
    st.lists(pieces, max_size=8),
    st.sampled_from(["<a>", "<a\n  k='v'>", '<a xml:space="preserve">']),
)
def test_every_character_of_a_text_has_its_exact_place(parts, opening):
    document, characters = opening, []
    for written, read, skip in parts:
        for number, character in enumerate(read):
            one_to_one = len(read) + skip + (3 if skip else 0) == len(written)
            characters.append(
                (
                    character,
                    place(document + written, len(document) + skip + (number if one_to_one else 0)),
                )
            )
        document += written
    source = read_source(document + "</a>")
    text = source.text_of(source.root)
    found = [(character, text.locate(number)) for number, character in enumerate(text.value)]
    told = iter(characters)
    # What was read is a subsequence of what was written: indentation is left out, nothing is moved.
    for character, span in found:
        assert any(one == (character, (span.line, span.column)) for one in told)
    kept = "".join(text.value.split())
    assert kept == "".join("".join(one for one, _ in characters).split())


@given(
    st.lists(
        st.sampled_from(["x", "é😀", "&lt;", "&#10;", "\n", "\t", " ", "<<v>>", "{{w}}", "'"]),
        max_size=10,
    )
)
def test_an_attribute_reads_as_the_parser_reads_it(parts):
    source = read_source('<a\n b="' + "".join(parts) + '"/>')
    text = source.attribute_text(source.root, "b")
    assert text.value == source.root.get("b")
    for number, character in enumerate(text.value):
        span = text.locate(number)
        written = source.text.split("\n")[span.line - 1][span.column - 1 : span.column]
        assert written in (character, "&", "<", ">", "\t", "") or (
            character == " " and written == ""
        )
