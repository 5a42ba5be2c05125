#!/usr/bin/env python3
"""Draws the curves of the learned planner and of others, as SVG.

    cargo run --release -p tenure-agent --features milp --example evidence -- marl.tsv FILE...
    scripts/evidence.py < marl.tsv > docs/images/marl.svg

Placements: means over all problems. Schedules: the plans' times as multiples of marl's, means over ten seeds, with a
shade from the least to the most.
"""

import csv
import math
import sys

COLOURS = {"marl": "#00798c", "density": "#d98c00", "random": "#8a7fb5", "evolutionary": "#d1495b", "density rule": "#d98c00"}
COLUMNS, WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 3, 330, 250, 50, 50, 40


def main():
    figures = {}
    for row in csv.DictReader(sys.stdin, delimiter="\t"):
        point = tuple(float(row[name]) for name in ("evaluations", "mean", "least", "most"))
        figures.setdefault(row["figure"], {}).setdefault(row["line"], []).append(point)
    rows = math.ceil(len(figures) / COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">')
    print("<title>Plans of marl and of others, over the evaluations they took</title>")
    print(f'<rect width="{width}" height="{height}" fill="#fff"/>')
    for number, (title, lines) in enumerate(figures.items()):
        print(f'<g transform="translate({number % COLUMNS * WIDTH} {number // COLUMNS * HEIGHT})">')
        print("\n".join(figure(title, lines)) + "</g>")
    print("</svg>")


def figure(title, lines):
    right, bottom = WIDTH - 15, HEIGHT - BOTTOM
    points = [point for line in lines.values() for point in line]
    last = math.log(max(point[0] for point in points))
    # Values far above the compared ones are cut off: those of harder programs, and of searches that have only begun.
    is_shaded = not title.startswith("placements")
    begun = [point for point in points if not is_shaded or point[0] >= 10]
    low = min(point[2] if is_shaded else 0 for point in begun)
    high = low + 1.1 * max(max(point[3] if is_shaded else point[1] for point in begun) - low, 0.01)
    x = lambda evaluations: LEFT + (right - LEFT) * math.log(evaluations) / last
    y = lambda value: bottom - (bottom - TOP) * (min(max(value, low), high) - low) / (high - low)
    yield f'<text x="{LEFT}" y="18" fill="#234">{title}</text>'
    if low < 1 < high and is_shaded:
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y(1):.1f}" y2="{y(1):.1f}" stroke="#00798c" stroke-dasharray="4 3"/>'
    for tick in range(5):
        value = low + (high - low) * tick / 4
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" fill="#456" text-anchor="end">{value:.2f}</text>'
    for evaluations in (1, 10, 100, 1000):
        if math.log(evaluations) <= last:
            yield f'<text x="{x(evaluations):.1f}" y="{bottom + 16}" fill="#456" text-anchor="middle">{evaluations}</text>'
    yield f'<text x="{(LEFT + right) / 2}" y="{bottom + 32}" fill="#456" text-anchor="middle">evaluations</text>'
    for number, (name, line) in enumerate(lines.items()):
        there = [f"{x(point[0]):.1f},{y(point[2]):.1f}" for point in line]
        back = [f"{x(point[0]):.1f},{y(point[3]):.1f}" for point in reversed(line)]
        mean = " ".join(f"{x(point[0]):.1f},{y(point[1]):.1f}" for point in line)
        if is_shaded:
            yield f'<polygon points="{" ".join(there + back)}" fill="{COLOURS[name]}" opacity="0.13"/>'
        yield f'<polyline points="{mean}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'
        yield f'<text x="{LEFT + 90 * number}" y="36" fill="{COLOURS[name]}" font-weight="bold">{name}</text>'


if __name__ == "__main__":
    main()
