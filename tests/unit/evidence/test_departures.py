"""What left its usual range is one list of sentences for terminal, panel and report."""

from workbench.evidence.departures import departures

FINDINGS = {
    "envelope": {
        "left": [{"sentence": "the loss of sample 7 alone is 4,004,561"}, {"sentence": None}],
        "compared": "Compared with calm step 100, replayed.",
    },
    "growth": {
        "left": {"sentence": "At step 4, the largest magnitude of 'w' left its usual envelope."},
        "headroom": [
            {"sentence": "enc.2: largest 60,000, 92 % of the largest float16", "share": 0.92},
            {"sentence": "enc.0: largest 1, 0.0015 % of the largest float16", "share": 1.5e-5},
        ],
    },
}


def test_what_left_comes_in_order_and_only_near_layers_are_named():
    assert departures(FINDINGS) == [
        "The loss of sample 7 alone is 4,004,561.",
        "Compared with calm step 100, replayed.",
        "At step 4, the largest magnitude of 'w' left its usual envelope.",
        "enc.2: largest 60,000, 92 % of the largest float16.",
    ]


def test_findings_that_hold_something_else_say_nothing():
    assert departures(None) == departures({}) == []
    assert departures({"envelope": [1], "growth": {"left": "x", "headroom": [2]}}) == []
