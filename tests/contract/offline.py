"""What a page may not do: name an address outside itself. For every test that makes HTML."""

from __future__ import annotations

import re

# Attributes and CSS through which a browser fetches; links that a person clicks are no fetch.
_FETCH = re.compile(
    r"""(?:\b(?:src|srcset|poster|data|action|formaction|manifest)\s*=\s*["']?
        |<link\b[^>]*\bhref\s*=\s*["']?
        |\burl\(\s*["']?
        |@import\s+["']
        |\bimport\s*(?:\(|[^"'\n;]*\bfrom)\s*["']
        |\bfetch\(\s*["']
        )\s*((?:https?:)?//[^\s"'>)]+)""",
    re.I | re.X,
)
_SCRIPT = re.compile(r"<script\b[^>]*>.*?</script>", re.I | re.S)


def external_addresses(page: str, *, scripts: bool = False) -> list[str]:
    """Addresses outside the page that a browser would fetch on opening it.

    Args:
        page: HTML, CSS or JavaScript text.
        scripts: Look inside script elements too. Off for pages with an inlined library, whose
            text holds addresses it never fetches; a Content-Security-Policy stops those.
    """
    text = page if scripts else _SCRIPT.sub(lambda m: m[0].split(">", 1)[0], page)
    return sorted(set(_FETCH.findall(text)))
