"""Nothing this package ships fetches from the network when it is shown."""

from __future__ import annotations

import pytest

from tests.contract.offline import external_addresses


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        "<script src=//cdn.example.org/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example.org/a.css">',
        "<style>body { background: url(https://example.org/a.png) }</style>",
        '<img srcset="https://example.org/a.png 2x">',
    ],
)
def test_a_fetched_address_is_found(page):
    assert len(external_addresses(page)) == 1


@pytest.mark.parametrize(
    "page",
    [
        '<a href="https://example.org">read more</a>',
        "<script>const home = 'https://example.org'</script>",
        '<img src="data:image/png;base64,AAAA">',
    ],
)
def test_what_is_not_fetched_is_not_found(page):
    assert external_addresses(page) == []


def test_an_import_inside_a_script_is_found_when_asked():
    assert external_addresses("import x from 'https://esm.example.org/x'", scripts=True)


def test_shipped_page_parts_fetch_nothing(repository):
    folders = [repository / "templates", repository / "workbench"]
    files = [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in {".js", ".css", ".html", ".j2", ".svg"}
    ]
    assert files, "the page parts and the panel's script are looked for"
    found = {
        str(path): addresses
        for path in files
        if (addresses := external_addresses(path.read_text(encoding="utf-8"), scripts=True))
    }
    assert found == {}
