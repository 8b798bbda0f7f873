"""Draw numbers as SVG: lines and bars that scale to any width, in the colours of style.css."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

_W, _H = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 12, 12, 28

Values = Sequence[float | None]
Format = Callable[[float], str]


def number(value: float) -> str:
    """A short number: 1234567 → 1.23M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(ms: float) -> str:
    """A short duration from milliseconds: 90000 → 90 s."""
    for limit, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * limit:
            return f"{ms / limit:.3g} {unit}"
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"


def percent(share: float) -> str:
    """A share as a percentage: 0.9876 → 98.76 %."""
    return f"{share * 100:.4g} %"


def line_chart(
    times_ms: Sequence[int],
    series: Mapping[str, Values],
    *,
    format: Format = number,
    log: bool = False,
    top: float | None = None,
) -> str:
    """Lines over time, with the values of a point on hover. Colours are in order of `series`."""
    values = [v for line in series.values() for v in line if v is not None]
    scale = _log_scale(values) if log else _linear_scale(values, top)
    x = _x(times_ms)
    parts = [_grid(scale, format), _time_axis(times_ms, x)]
    for n, line in enumerate(series.values()):
        parts.append(f'<path class="l c{n % 6}" d="{_path(times_ms, line, x, scale)}"/>')
    parts.append(_hover(times_ms, series, x, format))
    attributes = f'viewBox="0 0 {_W} {_H}" role="img" preserveAspectRatio="xMidYMid meet"'
    return f"<svg {attributes}>{''.join(parts)}</svg>"


def legend(names: Sequence[str]) -> str:
    """The names of the lines with their colours."""
    return (
        '<p class="legend">'
        + " ".join(
            f'<span><i class="b{n % 6}"></i>{escape(name)}</span>' for n, name in enumerate(names)
        )
        + "</p>"
    )


def bars(rows: Sequence[tuple[str, float]], *, format: Format = number) -> str:
    """Horizontal bars as HTML, which wraps and scales without SVG."""
    largest = max((value for _, value in rows), default=0) or 1
    lines = (
        f'<li><span class="name">{escape(name)}</span>'
        f'<span class="bar"><i style="width:{100 * value / largest:.1f}%"></i></span>'
        f'<span class="n">{format(value)}</span></li>'
        for name, value in rows
    )
    return f'<ul class="bars">{"".join(lines)}</ul>'


class _Scale:
    """Maps values to heights."""

    def __init__(self, low: float, high: float, ticks: Sequence[float], log: bool) -> None:
        self.low, self.high, self.ticks, self.log = low, high, ticks, log

    def y(self, value: float) -> float:
        """The height of a value. Values outside the scale are moved to its end."""
        if self.log:
            share = (math.log10(max(value, self.low)) - math.log10(self.low)) / (
                math.log10(self.high) - math.log10(self.low)
            )
        else:
            share = (value - self.low) / (self.high - self.low)
        return _H - _BOTTOM - min(max(share, 0.0), 1.0) * (_H - _BOTTOM - _TOP)


def _linear_scale(values: Sequence[float], top: float | None) -> _Scale:
    high = top or max((*values, 1e-9))
    step = 10 ** math.floor(math.log10(high))
    step = next(s * step / 10 for s in (2, 2.5, 5, 10, 20) if high / (s * step / 10) <= 5)
    count = math.ceil(high / step - 1e-9)
    return _Scale(0, top or step * count, [step * n for n in range(count + 1)], False)


def _log_scale(values: Sequence[float]) -> _Scale:
    positive = [v for v in values if v > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)) + 1e-9)
    high = max(high, low + 1)
    every = max(1, math.ceil((high - low) / 5))
    return _Scale(10.0**low, 10.0**high, [10.0**n for n in range(low, high + 1, every)], True)


def _x(times_ms: Sequence[int]) -> Callable[[int], float]:
    first, span = times_ms[0], max(times_ms[-1] - times_ms[0], 1)
    return lambda t: _LEFT + (t - first) / span * (_W - _LEFT - _RIGHT)


def _path(times_ms: Sequence[int], line: Values, x: Callable[[int], float], scale: _Scale) -> str:
    """The path of a line. It is interrupted where values are missing. A single value is a dot."""
    steps, pen = [], "M"
    for n, (t, value) in enumerate(zip(times_ms, line, strict=True)):
        if value is None:
            pen = "M"
            continue
        steps.append(f"{pen}{x(t):.1f} {scale.y(value):.1f}")
        alone = pen == "M" and (n + 1 == len(line) or line[n + 1] is None)
        if alone:
            steps.append("h0")
        pen = "L"
    return "".join(steps)


def _grid(scale: _Scale, format: Format) -> str:
    lines = (
        f'<line class="g" x1="{_LEFT}" x2="{_W - _RIGHT}" '
        f'y1="{scale.y(tick):.1f}" y2="{scale.y(tick):.1f}"/>'
        f'<text class="t" x="{_LEFT - 6}" y="{scale.y(tick) + 4:.1f}" text-anchor="end">'
        f"{escape(format(tick))}</text>"
        for tick in scale.ticks
    )
    return "".join(lines)


def _time_axis(times_ms: Sequence[int], x: Callable[[int], float]) -> str:
    wanted = 6
    indices = sorted({round(n * (len(times_ms) - 1) / (wanted - 1)) for n in range(wanted)})
    days = times_ms[-1] - times_ms[0] > 2 * 86_400_000
    labels = []
    for n in indices:
        at = datetime.fromtimestamp(times_ms[n] / 1000, UTC)
        anchor = (
            "start"
            if n == 0 and len(indices) > 1
            else "end"
            if n == len(times_ms) - 1
            else "middle"
        )
        text = at.strftime("%d %b") if days else at.strftime("%H:%M")
        labels.append(
            f'<text class="t" x="{x(times_ms[n]):.1f}" y="{_H - 8}" text-anchor="{anchor}">'
            f"{text}</text>"
        )
    return "".join(labels)


def _hover(
    times_ms: Sequence[int], series: Mapping[str, Values], x: Callable[[int], float], format: Format
) -> str:
    width = (_W - _LEFT - _RIGHT) / max(len(times_ms) - 1, 1)
    areas = []
    for n, t in enumerate(times_ms):
        said = [
            f"{name}: {format(value)}"
            for name, line in series.items()
            if (value := line[n]) is not None
        ]
        text = "\n".join(
            [datetime.fromtimestamp(t / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC"), *said]
        )
        areas.append(
            f'<rect class="h" x="{x(t) - width / 2:.1f}" y="{_TOP}" '
            f'width="{width:.1f}" height="{_H - _TOP - _BOTTOM}">'
            f"<title>{escape(text)}</title></rect>"
        )
    return "".join(areas)
