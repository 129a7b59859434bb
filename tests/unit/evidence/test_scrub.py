import socket

import pytest

from workbench.evidence import scrub as room
from workbench.evidence.scrub import scrub, scrub_tree


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('File "/home/me/My Project/train.py", line 3', 'File "train.py", line 3'),
        ("cannot open /tmp/a/b/c.pt and /var/x/y", "cannot open c.pt and y"),
        ("key=/home/bob/data/x.bin", "key=x.bin"),
        ("at:/home/bob/x.py:12", "at:x.py:12"),
        ("(/a/b.py)", "(b.py)"),
        ("'/a/b/' is a folder", "'b' is a folder"),
        ("~/project/t.py", "t.py"),
        ("/home/bob", "~"),
        ("file:///home/bob/x.html", "x.html"),
        (r"C:\Users\me\x.py:3", "x.py:3"),
        (r"\\server\share\x.py", "x.py"),
    ],
)
def test_folders_go_and_file_names_stay(text, left):
    assert scrub(text) == left


@pytest.mark.parametrize(
    "text",
    ["https://a.b/c/d", "and/or 1/2/3 a/b", "x = 3 / 4 / 5", "loss // 2", "aten.log.default", "/s"],
)
def test_what_is_no_path_stays(text):
    assert scrub(text) == text


def test_host_name_goes_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-node-17.corp.example")
    room._host.cache_clear()
    try:
        assert scrub("refused by gpu-node-17:29500") == "refused by [host]:29500"
        assert scrub("on gpu-node-17.corp.example now") == "on [host] now"
        assert scrub("gpu-node-170 is another") == "gpu-node-170 is another"
    finally:
        room._host.cache_clear()


def test_tree_is_scrubbed_through_but_numbers_in_base64_are_left():
    tree = {"/a/b/k": ["/a/b/v", {"bdata": "+/ab/cd/ef"}], "n": 1.5, "none": None}
    assert scrub_tree(tree) == {"k": ["v", {"bdata": "+/ab/cd/ef"}], "n": 1.5, "none": None}
