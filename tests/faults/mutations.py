"""Changes to files that keep most of their structure, so that a reader gets deep into them.

Every function takes the bytes of a true file and a ``random.Random``: hypothesis and the coverage
guided fuzzer drive the same changes.
"""

from __future__ import annotations

import io
import json
import pickletools
import struct
import zipfile
import zlib

ODD = [
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**30, "",
    "x", "a" * 300, "../../etc/passwd", "/etc/passwd", "\x00", "\ud800", "float32", "bool", "F32",
    "I64", "BF16", "sha256:00", "nan", [], {}, [0], [-1], [2**62, 2**62], [[]], {"finite": False},
    {"finite": False, "value": "nan"}, {"finite": False, "value": "x"}, {"kind": "tensor"},
    {"t": "tensor"}, {"a": {"a": {"a": []}}},
]  # fmt: skip
"""Values that readers have been caught out by."""


def mutate_bytes(data, rng):
    """Flip, cut, repeat and overwrite bytes."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, max(0, len(content) - 1))
        how = rng.randint(0, 5)
        if how == 0 and content:
            content[at] ^= 1 << rng.randint(0, 7)
        elif how == 1:
            del content[at : at + rng.randint(1, 16)]
        elif how == 2:
            content[at:at] = content[at : at + rng.randint(1, 32)]
        elif how == 3:
            content[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7])
        elif how == 4:
            del content[at:]
        elif content:
            content[at] = rng.choice(b'0123456789"[]{},:-aFe\\\n ')
    return bytes(content)


def mutate_tree(tree, rng):
    """Change one to three places of a JSON tree."""
    for _ in range(rng.randint(1, 3)):
        tree = _changed(tree, rng)
    return tree


def _places(tree):
    found = []
    waiting = [tree]
    while waiting and len(found) < 5000:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                waiting.append(node[key])
    return found


def _changed(tree, rng):
    places = _places(tree) if isinstance(tree, dict | list) else []
    if not places or rng.randint(0, 40) == 0:
        return _copy(rng.choice(ODD))
    node, key = rng.choice(places)
    how = rng.randint(0, 6)
    if how <= 2:
        node[key] = _copy(rng.choice(ODD))
    elif how == 3:
        other, taken = rng.choice(places)
        node[key] = _copy(other[taken]) if taken in other or isinstance(other, list) else None
    elif how == 4:
        del node[key]
    elif how == 5 and isinstance(node, dict):
        node[str(rng.choice(["a", "", "../x", "state/model.safetensors", key])) + "x"] = node[key]
    elif isinstance(node[key], int) and not isinstance(node[key], bool):
        node[key] += rng.choice([-1, 1, 1000, 2**40])
    else:
        node[key] = [node[key]]
    return tree


def _copy(value):
    return json.loads(json.dumps(value))


def _text(tree, rng):
    """Mostly strict JSON; now and then what Python alone writes."""
    text = json.dumps(tree)
    if rng.randint(0, 15) == 0:
        text = text.replace("1", rng.choice(["NaN", "1e999", "Infinity", "01", "-"]), 1)
    if rng.randint(0, 15) == 0:
        text = text.replace("{", '{"id": 1, "id": 2, ', 1)
    return text.encode("utf-8", "surrogatepass")


def mutate_json(data, rng):
    """Change a JSON text, as a tree most of the time."""
    if rng.randint(0, 9) == 0:
        return mutate_bytes(data, rng)
    try:
        tree = json.loads(data)
    except ValueError:
        return mutate_bytes(data, rng)
    return _text(mutate_tree(tree, rng), rng)


def mutate_lines(data, rng):
    """Change one line of a file of JSON lines."""
    lines = data.split(b"\n")
    at = rng.randint(0, len(lines) - 1)
    lines[at] = mutate_json(lines[at] or b"{}", rng)
    return b"\n".join(lines)


def mutate_safetensors(data, rng):
    """Change the header of a safetensors file, the texts packed into it, or the bytes."""
    if rng.randint(0, 9) == 0 or len(data) < 9:
        return mutate_bytes(data, rng)
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    try:
        tree = json.loads(header)
        packed = tree.get("__metadata__", {})
        if packed and isinstance(packed, dict) and rng.randint(0, 1):
            key = rng.choice(list(packed))
            packed[key] = mutate_json(str(packed[key]).encode(), rng).decode("utf-8", "replace")
        else:
            tree = mutate_tree(tree, rng)
    except (ValueError, AttributeError):
        return mutate_bytes(data, rng)
    header = _text(tree, rng)
    length = len(header) + (rng.choice([-1, 1, 2**40]) if rng.randint(0, 15) == 0 else 0)
    return (
        struct.pack("<Q", max(0, length)) + header + body[: rng.choice([len(body), len(body), 4])]
    )


def mutate_zip(data, rng, inner=mutate_bytes):
    """Change a member of a zip and write it anew, or change bytes of its directory."""
    if rng.randint(0, 3) == 0:
        return mutate_bytes(data, rng)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old:
            members = [(info.filename, old.read(info)) for info in old.infolist()]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError):
        return mutate_bytes(data, rng)
    if members:
        at = rng.randint(0, len(members) - 1)
        name, content = members[at]
        how = rng.randint(0, 5)
        if how <= 2:
            members[at] = (name, inner(content, rng))
        elif how == 3:
            members[at] = (rng.choice(["../x", "/x", name + "x", "manifest.json", ""]), content)
        elif how == 4:
            del members[at]
        else:
            members.insert(at, members[rng.randint(0, len(members) - 1)])
    out = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if rng.randint(0, 15) == 0 else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", kind) as new:
        for name, content in members:
            new.writestr(zipfile.ZipInfo(name), content, kind)
    made = out.getvalue()
    return mutate_bytes(made, rng) if rng.randint(0, 3) == 0 else made


def mutate_pickle(data, rng):
    """Take out, repeat and exchange instructions of a pickle stream, or change its bytes."""
    if rng.randint(0, 3) == 0:
        return mutate_bytes(data, rng)
    try:
        starts = [at for _, _, at in pickletools.genops(data)]
    except (ValueError, IndexError, OverflowError):
        return mutate_bytes(data, rng)
    ends = [*starts[1:], len(data)]
    parts = [data[a:b] for a, b in zip(starts, ends, strict=True)]
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(parts) - 1)
        other = parts[rng.randint(0, len(parts) - 1)]
        how = rng.randint(0, 3)
        if how == 0:
            parts[at] = other
        elif how == 1:
            parts.insert(at, other)
        elif how == 2 and len(parts) > 1:
            del parts[at]
        else:
            parts.insert(
                at,
                rng.choice([b"}", b"]", b")", b"N", b"(", b"0", b"R", b"b", b"Q", b"K\xff", b"t"]),
            )
    return b"".join(parts)


def mutate_checkpoint(data, rng):
    """Change a file of ``torch.save``: mostly the stream in it."""
    return mutate_zip(
        data,
        rng,
        lambda content, r: (mutate_pickle if content[:1] == b"\x80" else mutate_bytes)(content, r),
    )


def mutate_page(data, rng):
    """Change a report: a data block of it as JSON, else its bytes."""
    head, mark, rest = data.partition(b'type="application/json"')
    begin, end = rest.find(b">"), rest.find(b"</script>")
    if not mark or begin < 0 or end < begin or rng.randint(0, 2) == 0:
        return mutate_bytes(data, rng)
    block = mutate_json(rest[begin + 1 : end], rng)
    return head + mark + rest[: begin + 1] + block + rest[end:]
