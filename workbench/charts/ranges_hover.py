"""What the ranges chart says of a layer on hover."""

from __future__ import annotations

import math
from typing import Any

from workbench.charts.ranges_view import RangeView
from workbench.charts.words import KINDS, number, plain, shorten
from workbench.evidence.wording import count_words


def hover_texts(view: RangeView) -> list[str]:
    """What is said on hover, one text a layer."""
    data = {str(name): view.layers[name].values for name in view.layers.data_vars}
    return ["<br>".join(_hover_lines(data, row, view.tensor)) for row in range(view.size)]


def _hover_lines(data: dict[str, Any], row: int, tensor: str) -> list[str]:
    found = {kind: int(data[kind][row]) for kind in (*KINDS, "finite")}
    module, kind = str(data["module"][row]), str(data["type"][row])
    lines = [f"<b>{plain(shorten(str(data['label'][row]), 90))}</b>"]
    if int(data["members"][row]) > 1:
        lines.append(
            f"{number(int(data['members'][row]))} layers, "
            f"worst: {plain(shorten(str(data['worst'][row]), 80))}"
        )
    elif kind:
        lines.append(f"{plain(shorten(kind, 60))}{' (root module)' if not module else ''}")
    shape = plain(str(data["shape"][row]))
    lines.append(f"{tensor[:-1]} · {plain(str(data['dtype'][row]))} {shape}")
    lines.append(count_words(found))
    if found["finite"]:
        lines.append(
            f"min {number(float(data['min'][row]))} · max {number(float(data['max'][row]))} · "
            f"rms {number(float(data['rms'][row]))}"
        )
        absmin = float(data["absmin"][row])
        if math.isfinite(absmin):
            lines.append(f"smallest magnitude {number(absmin)}")
    zeros, subnormals = int(data["zeros"][row]), int(data["subnormals"][row])
    lines.append(f"zeros {number(zeros)} · subnormals {number(subnormals)}")
    if data["source"][row]:
        lines.append(plain(shorten(str(data["source"][row]), 80)))
    return lines
