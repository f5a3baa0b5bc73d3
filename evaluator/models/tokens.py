"""A token estimate that needs no tokenizer, no file and no network."""

from __future__ import annotations

# Lower-case letters and blanks make up long tokens; capitals, digits and punctuation short ones.
_DENSE = bytes(b for b in range(256) if not (97 <= b <= 122 or b == 32))
_NOT_ALPHANUMERIC = bytes(b for b in range(128) if not chr(b).isalnum())


def estimate_tokens(text: str) -> int:
    """About how many tokens a model would count for `text`, at least 0.

    Built to exceed the true figure rather than undercut it: prose and code come out about two
    thirds too high. A character of a script other than Latin counts as one to three tokens, and
    text without blanks or punctuation (encoded data) as three tokens to four characters. Linear, C
    speed.
    """
    if not text:
        return 0
    data = text.encode("utf-8", "surrogatepass")
    if len(data) == len(text):
        latin = data
    else:
        latin = text.encode("ascii", "ignore")
    size = len(latin)
    light = len(latin.translate(None, _DENSE))
    sixths = light * 2 + (size - light) * 4
    if len(latin.translate(None, _NOT_ALPHANUMERIC)) * 16 > size * 15:
        sixths = max(sixths, size * 9 // 2)
    return -(-(sixths + (len(data) - size) * 4) // 6)
