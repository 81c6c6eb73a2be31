from leanbayes.report.markup import Markup, join, tag

HOSTILE = "<script>alert('x')</script>\"&"


def test_text_is_escaped_once():
    inner = tag("b", HOSTILE)
    assert "<script>" not in inner
    assert tag("p", inner) == f"<p>{inner}</p>"
    assert tag("p", [["a<", None], Markup("<br>")]) == "<p>a&lt;<br></p>"


def test_attributes_are_escaped():
    assert tag("p", title=HOSTILE).count('"') == 2
    assert tag("p", hidden=True, id=None, class_="a", aria_label="b") == '<p hidden class="a" aria-label="b"></p>'
    assert tag("circle", r=1.26) == '<circle r="1.3"></circle>'


def test_join_leaves_markup_alone():
    assert join([Markup("<i>"), "<i>", 3]) == "<i>&lt;i&gt;3"
