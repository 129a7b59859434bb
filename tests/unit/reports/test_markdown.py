import pytest

from workbench.reports.markdown import headings, to_html


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("text", "<p>text</p>"),
        ("one\ntwo\n\nthree", "<p>one two</p>\n<p>three</p>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("### small", "<h3>small</h3>"),
        ("## the page's own", ""),
        ("a **b** `c` *d*", "<p>a <strong>b</strong> <code>c</code> <em>d</em></p>"),
        ("[in](#stages)", '<p><a href="#stages">in</a></p>'),
        ("[out](https://example.org)", "<p>out</p>"),
        ("[x](javascript:alert)", "<p>x</p>"),
        ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>"),
        ('[x](#a"onclick=b)', '<p><a href="#a&#34;onclick=b">x</a></p>'),
    ],
)
def test_text_cells(source, html):
    assert str(to_html(source)) == html


def test_headings_with_their_level():
    assert headings("# One\ntext\n## Two ##\n#no") == [(1, "One"), (2, "Two")]
