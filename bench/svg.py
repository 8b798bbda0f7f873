"""Plots as SVG: bars and small line charts, in light and in dark mode. Needs no other library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

WIDTH, BAR, GAP, NAMES, NUMBERS = 720, 18, 6, 120, 90
COLUMNS, HEIGHT, MARGIN = 2, 190, 48
"""Line charts: how many are side by side, their height, and the room for numbers on the left."""

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 } .small { font-size: 11px }
  .peer { fill: #9aa7b4 } .ours { fill: #1f6feb }
  .axis { stroke: #d0d7de; fill: none } .line { fill: none; stroke-width: 2 }
  .c0 { stroke: #1f6feb } .c1 { stroke: #d1242f } .c2 { stroke: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .peer { fill: #57606a } .ours { fill: #58a6ff }
    .axis { stroke: #30363d }
    .c0 { stroke: #58a6ff } .c1 { stroke: #ff7b72 } .c2 { stroke: #3fb950 }
  }
"""

Points = Sequence[tuple[float, float]]
Show = Callable[[float], str]


def document(label: str, height: float, parts: Sequence[str]) -> str:
    """A whole SVG file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f"aria-label={quoteattr(label)}>"
    )
    return f"{head}\n<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"


def bars_height(count: int) -> int:
    """The height of a bar chart of so many bars."""
    return 40 + count * (BAR + GAP)


def bars(title: str, values: Mapping[str, float], show: Show, top: int) -> str:
    """A bar chart, with the highest value on top. The names of jobq's own bars begin with jobq."""
    lines = [f'<text class="title" x="0" y="{top + 18}">{escape(title)}</text>']
    room, highest = WIDTH - NAMES - NUMBERS, max(values.values())
    for n, (name, value) in enumerate(sorted(values.items(), key=lambda pair: -pair[1])):
        y, length = top + 28 + n * (BAR + GAP), max(1.0, value / highest * room)
        kind = "ours" if name.startswith("jobq") else "peer"
        lines += [
            f'<text x="{NAMES - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{NAMES}" y="{y}" '
            f'width="{length:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{NAMES + length + 6:.1f}" y="{y + 14}">{escape(show(value))}</text>',
        ]
    return "\n".join(lines)


def short(value: float) -> str:
    """A number in few characters: 10k, 1.5M, 0.02."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.3g}"


def line_charts(
    label: str, charts: Mapping[str, Mapping[str, Points]], *, log: bool, x_label: str
) -> str:
    """Small line charts beside each other, one per title, with a line per name.

    With `log`, both axes are logarithmic: a flat line does not grow, and a straight line upwards
    grows in proportion.
    """
    names = list(dict.fromkeys(name for chart in charts.values() for name in chart))
    parts = [_legend(names, x_label)]
    wide = WIDTH / COLUMNS
    for n, (title, chart) in enumerate(charts.items()):
        left, top = (n % COLUMNS) * wide, 28 + (n // COLUMNS) * HEIGHT
        parts.append(_chart(title, chart, names, left, top, wide, log))
    rows = -(-len(charts) // COLUMNS)
    return document(label, 28 + rows * HEIGHT, parts)


def _legend(names: Sequence[str], x_label: str) -> str:
    lines, x = [], 0.0
    for n, name in enumerate(names):
        lines.append(f'<path class="line c{n % 3}" d="M{x:.0f} 12h20"/>')
        lines.append(f'<text class="small" x="{x + 25:.0f}" y="16">{escape(name)}</text>')
        x += 45 + 7 * len(name)
    lines.append(
        f'<text class="small" x="{WIDTH - 8}" y="16" text-anchor="end">{escape(x_label)}</text>'
    )
    return "\n".join(lines)


def _chart(
    title: str,
    chart: Mapping[str, Points],
    names: Sequence[str],
    left: float,
    top: float,
    wide: float,
    log: bool,
) -> str:
    points = [point for line in chart.values() for point in line]
    xs = sorted({x for x, _ in points})
    floor = min((y for _, y in points if y > 0), default=1.0)
    low, high = (floor / 3, max(y for _, y in points) * 3) if log else (0.0, _above(points))
    high = max(high, low * 10) if log else high
    scale = math.log10 if log else float
    x0, x1 = left + MARGIN, left + wide - 24
    y0, y1 = top + HEIGHT - 34, top + 28

    def x_of(x: float) -> float:
        span = scale(xs[-1]) - scale(xs[0]) or 1.0
        return x0 + (scale(x) - scale(xs[0])) / span * (x1 - x0)

    def y_of(y: float) -> float:
        y = max(y, low) if log else y
        return y0 - (scale(y) - scale(low)) / (scale(high) - scale(low)) * (y0 - y1)

    lines = [
        f'<text class="title small" x="{left:.0f}" y="{top + 16:.0f}">{escape(title)}</text>',
        f'<path class="axis" d="M{x0:.0f} {y1:.0f}V{y0:.0f}H{x1:.0f}"/>',
    ]
    lines += [
        f'<text class="small" x="{x0 - 5:.0f}" y="{y_of(y) + 4:.0f}" text-anchor="end">'
        f"{short(y)}</text>"
        for y in _y_ticks(low, high, log)
    ]
    lines += [
        f'<text class="small" x="{x_of(x):.0f}" y="{y0 + 15:.0f}" text-anchor="middle">'
        f"{short(x)}</text>"
        for x in (xs if len(xs) <= 5 else xs[:: max(1, len(xs) // 6)])
    ]
    for name, line in chart.items():
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line)
        lines.append(f'<path class="line c{names.index(name) % 3}" d="M{path}"/>')
    return "\n".join(lines)


def _above(points: Points) -> float:
    return max((y for _, y in points), default=1.0) * 1.15 or 1.0


def _y_ticks(low: float, high: float, log: bool) -> list[float]:
    if not log:
        return [high * n / 4 for n in range(5)]
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**n for n in range(first, last + 1)]
