"""A curve as a picture, on logarithmic axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from benchmarks.growth.curve import Curve
from tools.figures.canvas import Canvas

WIDTH: Final = 560
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 70, 40, 50, 60
SUFFIXES: Final = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


class Axis:
    """Where amounts lie between two places."""

    def __init__(self, least: float, most: float, begin: float, end: float) -> None:
        self._low = math.floor(math.log10(least))
        # One decade at least, so that a flat curve looks flat.
        self._high = max(math.ceil(math.log10(most)), self._low + 1)
        self._begin, self._scale = begin, (end - begin) / (self._high - self._low)

    def place(self, value: float) -> float:
        """Return the place of a value."""
        return self._begin + (math.log10(value) - self._low) * self._scale

    def decades(self) -> Iterator[float]:
        """Yield the powers of ten on the axis."""
        for power in range(self._low, self._high + 1):
            yield 10.0**power


def draw(curve: Curve) -> str:
    """Return a curve as SVG."""
    points = curve.points()
    canvas = Canvas(WIDTH, HEIGHT, f"{curve.title}, by {curve.amount}")
    costs = [cost for _, cost in points]
    across = Axis(points[0][0], points[-1][0], LEFT, WIDTH - RIGHT)
    up = Axis(min(costs), max(costs), HEIGHT - BOTTOM, TOP)
    canvas.text(LEFT, 24, f"{curve.title} ({curve.unit})", "title")
    for amount in across.decades():
        x = across.place(amount)
        canvas.line((x, HEIGHT - BOTTOM), (x, HEIGHT - BOTTOM + 5), arrow=False)
        canvas.text(x, HEIGHT - BOTTOM + 20, short(amount), "soft", anchor="middle")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, curve.amount, "soft", anchor="middle")
    for cost in up.decades():
        y = up.place(cost)
        canvas.line((LEFT, y), (WIDTH - RIGHT, y), arrow=False, dashed=True)
        canvas.text(LEFT - 8, y + 4, short(cost), "soft", anchor="end")
    places = [(across.place(amount), up.place(cost)) for amount, cost in points]
    canvas.line(*places, arrow=False)
    for (x, y), (_, cost) in zip(places, points, strict=True):
        # The first figure stands to the right of the axis and its numbers.
        canvas.text(x, y - 8, short(cost), anchor="start" if x == LEFT else "middle")
    return canvas.svg()


def short(value: float) -> str:
    """Return a number in three figures at most."""
    for size, suffix in SUFFIXES:
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"
