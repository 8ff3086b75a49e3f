"""Templates escape what they are given."""

from __future__ import annotations

from fljax.core import pages

BAD = '<b onclick="x">&\''
SAFE = "&lt;b onclick=&#34;x&#34;&gt;&amp;&#39;"


def test_what_is_no_template_is_text() -> None:
    parts = [
        pages.table([(BAD,), (BAD,)], BAD), pages.note(BAD, BAD), pages.section(BAD, BAD), pages.folded(BAD, BAD),
        pages.image(b"", BAD), pages.wide(BAD), pages.figures([BAD]), f"<p>{pages.note('twice')}", pages.joined(BAD),
    ]  # fmt: skip
    page = pages.page(BAD, [*parts, pages.bar(0.5), ""], {BAD: BAD}, 5)
    assert (page.count(SAFE), BAD in page, "<b " in page) == (17, False, False)
    assert "&lt;p&gt;&lt;p class=" in page
    assert '<progress value="0.5000" max="1"></progress>' in page
    assert '<meta http-equiv="refresh" content="5">' in page
    assert "refresh" not in pages.page("", [], {})


def test_a_surrogate_is_an_escape() -> None:
    assert "\\ud800" in pages.page("\ud800", [], {})
