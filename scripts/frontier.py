#!/usr/bin/env python3
"""Draws the reserved memory of each allocator against the cost of its driver calls, as SVG.

    tenure replay TRACE... --repeat 3 --json | scripts/frontier.py > docs/images/frontier.svg

Costs are those of all passes, as multiples of the native allocator's for the same trace.
"""

import json
import sys

COLOURS = {
    "native": "#d1495b",
    "expandable": "#d98c00",
    "paged": "#00798c",
    "explored, with compaction": "#8a7fb5",
    "explored, without": "#b9b3d3",
}

# The best of about 150 policies that were explored before: driver time of the first pass, reserved / requested.
EXPLORED = {
    "resnet50_train": [(2.3, 1.009), (2.3, 1.018)],
    "densenet201_train": [(2.2, 1.010), (1.9, 1.010)],
    "gpt2_varlen": [(4.2, 1.007), (4.4, 1.007)],
    "llama_ckpt_varlen": [(3.1, 1.008), (2.6, 1.030)],
    "multi_model_serve": [(2.9, 1.047), (2.2, 1.070)],
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 940, 460, 70, 230, 30, 50


def main():
    rows = [json.loads(line) for line in sys.stdin]
    native = {row["trace"]: row["modelled_driver_us"] for row in rows if row["allocator"] == "native"}
    points = []
    for row in rows:
        waste = 100 * (row["peak_reserved_bytes"] / row["peak_requested_bytes"] - 1)
        points.append((row["modelled_driver_us"] / native[row["trace"]], waste, row["allocator"], row["trace"]))
    explored = [
        (cost, 100 * (ratio - 1), name, trace)
        for trace in native
        for name, (cost, ratio) in zip(list(COLOURS)[3:], EXPLORED.get(trace, []))
    ]
    print(svg(points, explored))


def svg(points, explored):
    right, top = 6, 150
    x = lambda cost: LEFT + (WIDTH - LEFT - RIGHT) * min(cost, right) / right
    # The scale is a square root: the goal is at 1 %, native's worst beyond 100 %.
    y = lambda waste: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (max(waste, 0) / top) ** 0.5
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        "<title>Memory reserved beyond what was requested, and the cost of driver calls</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<rect x="{x(0)}" y="{y(1)}" width="{x(5) - x(0)}" height="{y(0) - y(1)}" fill="#00798c" opacity="0.12"/>',
        f'<text x="{x(5) + 8}" y="{y(0) - 10}" fill="#456">goal: 1 % (or 64 MiB), 5 times</text>',
    ]
    for waste in (0, 1, 5, 10, 25, 50, 100, 150):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(waste)}" y2="{y(waste)}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(waste) + 4}" fill="#456" text-anchor="end">{waste} %</text>')
    for cost in range(right + 1):
        out.append(f'<text x="{x(cost)}" y="{HEIGHT - BOTTOM + 18}" fill="#456" text-anchor="middle">{cost}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" fill="#456" text-anchor="middle">driver time, multiples of native&#8217;s</text>')
    out.append(f'<text x="{LEFT}" y="18" fill="#456">reserved beyond requested, at the peak</text>')
    for trace in sorted({point[3] for point in points}):
        path = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points if p[3] == trace)
        out.append(f'<polyline points="{path}" fill="none" stroke="#aab" stroke-dasharray="2 4"/>')
    for cost, waste, allocator, trace in explored + points:
        colour = COLOURS[allocator]
        out.append(f'<circle cx="{x(cost):.1f}" cy="{y(waste):.1f}" r="5" fill="{colour}"><title>{trace}, {allocator}: {waste:.2f} %, {cost:.2f} times</title></circle>')
        if allocator == "native":
            out.append(f'<text x="{x(cost) - 8:.1f}" y="{y(waste) + 4:.1f}" fill="#456" text-anchor="end" font-size="11">{trace.split("_")[0]}</text>')
    for index, (name, colour) in enumerate(COLOURS.items()):
        out.append(f'<circle cx="{WIDTH - RIGHT + 30}" cy="{TOP + 20 + 24 * index}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 42}" y="{TOP + 24 + 24 * index}" fill="#234">{name}</text>')
    return "\n".join(out + ["</svg>"])


if __name__ == "__main__":
    main()
