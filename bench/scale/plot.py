"""The plot of docs/scale.md."""

from __future__ import annotations

import math

from bench.scale.run import Found


def svg(layouts: dict[str, list[Found]]) -> str:
    """Processor time per job by size, for both layouts. A straight level line is linear growth."""
    width, height, left, bottom = 720, 300, 60, 40
    high = max(row.server_us for rows in layouts.values() for row in rows) * 1.15
    most = max(row.primaries for rows in layouts.values() for row in rows)

    def x(primaries: int) -> float:
        return left + math.log(max(1, primaries)) / math.log(max(2, most)) * (width - left - 130)

    def y(us: float) -> float:
        return 20 + (1 - math.log10(max(us, 10)) / math.log10(high)) * (height - 20 - bottom)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="processor time of all primaries per job, by number of primaries">',
        "<style>text { font: 13px system-ui, sans-serif; fill: #24292f } .axis { stroke: #9aa7b4 }"
        " .a { stroke: #cf222e; fill: none; stroke-width: 2 } .b { stroke: #1f6feb; fill: none;"
        " stroke-width: 2 } @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }</style>",
        f'<line class="axis" x1="{left}" y1="{height - bottom}" x2="{width - 130}" '
        f'y2="{height - bottom}"/>',
        f'<text x="{left}" y="14">µs of processor time per job, all primaries together</text>',
        f'<text x="{(width - 130) / 2:.0f}" y="{height - 6}">primaries</text>',
    ]
    for kind, (name, rows) in zip("ab", layouts.items(), strict=True):
        points = " ".join(f"{x(row.primaries):.1f},{y(row.server_us):.1f}" for row in rows)
        lines.append(f'<polyline class="{kind}" points="{points}"/>')
        lines.append(
            f'<text x="{x(rows[-1].primaries) + 6:.1f}" y="{y(rows[-1].server_us) + 4:.1f}">'
            f"{name}: {rows[-1].server_us:,.0f}</text>"
        )
    lines += [
        f'<text x="{x(row.primaries):.1f}" y="{height - bottom + 16}" text-anchor="middle">'
        f"{row.primaries}</text>"
        for row in next(iter(layouts.values()))
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"
