#!/usr/bin/env python3
"""Draws pictures of real runs, with programs on simulated GPUs: gcgroupfs/doc/top.svg of gcgroupfs top in tmux,
and gcgroupfs/doc/web*.png of the exporter's page in headless Chromium.

usage: scripts/screenshot.py [--only top|web] [BUILT-TREE]

BUILT-TREE is target/dist unless given (scripts/build.sh makes it). Run as root. The page is drawn after seven
minutes, so that its curves show something.
"""

import html
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from web.browser import Browser
from web.stage import Stage, wait

REPOSITORY = Path(__file__).resolve().parent.parent
COLUMNS, LINES = 112, 17
# Pictures of the page: file, width, height, colour scheme, and what is chosen.
EMPTY = [("web-0.png", 800, 520, "light", "")]
CROWDED = [("web-500.png", 1400, 900, "light", "#sort=memory"), ("web-500-phone.png", 390, 844, "light", "")]
PICTURES = [
    ("web.png", 1120, 900, "light", ""),
    ("web-dark.png", 1120, 900, "dark", "#open=team/night"),
    ("web-phone.png", 390, 844, "dark", ""),
]
# Seconds of history on the page.
HISTORY = 420
CELL_WIDTH, CELL_HEIGHT = 8.4, 18
BACKGROUND, FOREGROUND = "#16181d", "#d6d9e0"
COLORS = ["#454a54", "#ef6b73", "#7ec16e", "#e0b050", "#6aa5e8", "#c586c0", "#5bc0c8", "#d6d9e0"]


def play(stage):
    for group in ["team", "team/night", "interactive"]:
        stage.gcgroupfs("mkdir", group)
    busy = ["throughput", "--duration", "3600"]
    stage.program("notebook", "interactive", *busy, "--kernel-usec", "300")
    train = stage.program("train", "team", *busy, "--device", "1")
    frozen = stage.program("sweep", "team/night", "obey")
    moved = stage.program("embed", "team/night", "obey", swap=True)
    for program, mib in [(frozen, 11 << 10), (moved, 768)]:
        program.stdin.write(f"alloc linear {mib << 20}\n")
        program.stdin.flush()
        program.stdout.readline()
    for path, value in [
        ("team/memory.limit", "30G"),
        ("team/night/compute.priority", "12"),
        ("interactive/compute.priority", "4"),
        (f"{train.pid}/compute.max", "30000 100000"),
        (f"{frozen.pid}/compute.freeze", "1"),
        (f"{moved.pid}/memory.reclaim", "max"),
    ]:
        stage.gcgroupfs("set", path, value)


def capture(stage):
    tmux = ["tmux", "-S", str(stage.root / "tmux"), "-u", "-f", "/dev/null"]

    def run(*words):
        result = subprocess.run(tmux + list(words), env=stage.environment, capture_output=True, text=True, check=True)
        return result.stdout

    stage.start([*tmux, "-D"])
    shows = {"args": [*tmux, "show", "-g"], "env": stage.environment, "capture_output": True}
    wait("tmux answers", lambda: subprocess.run(**shows).returncode == 0)
    run("set", "-g", "status", "off")
    run("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "gcgroupfs", "top", "-d", "0.5")
    # A full sparkline.
    time.sleep(8)
    return run("capture-pane", "-p", "-e", "-N").splitlines()


def draw(browser, url, pictures, ready):
    for name, width, height, scheme, chosen in pictures:
        browser.look(width, scheme, height)
        browser.go(url + chosen)
        browser.until(ready)
        browser.picture(REPOSITORY / "gcgroupfs/doc" / name)


def page(stage, browser, url):
    """Draws the page of an exporter with a few programs, after a phase in which one was frozen, and with 500."""
    for name in ["serve", "evaluate"]:
        stage.program(name, "team", "throughput", "--duration", "3600")
    time.sleep(HISTORY / 2)
    stage.gcgroupfs("set", "interactive/compute.freeze", "1")
    time.sleep(HISTORY / 8)
    stage.gcgroupfs("set", "interactive/compute.freeze", "0")
    time.sleep(HISTORY * 3 / 8)
    ready = "document.querySelector('#tree .c-name') && (!location.hash || document.querySelector('.details path.busy'))"
    draw(browser, url, PICTURES, ready)
    stage.crowd(500)
    time.sleep(10)
    draw(browser, url, CROWDED, "document.querySelectorAll('#tree tbody tr:not(.group)').length === 500")


def spans(line, look):
    """Yields (column, text, look) and keeps the look for the next line."""
    column = 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            numbers = iter(int(number or 0) for number in part[2:-1].split(";"))
            for number in numbers:
                if number == 38 and next(numbers) == 5:
                    look["color"] = COLORS[next(numbers) % 8]
                elif number == 0:
                    look.clear()
                elif number in (1, 2, 7):
                    look[number] = True
                elif 30 <= number <= 37:
                    look["color"] = COLORS[number - 30]
                elif number == 39:
                    look.pop("color", None)
        elif part:
            yield column, part, dict(look)
            column += len(part)


def svg(lines):
    width, height = COLUMNS * CELL_WIDTH + 16, len(lines) * CELL_HEIGHT + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-label="gcgroupfs top">',
        f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>',
        '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">',
    ]
    look = {}
    for number, line in enumerate(lines):
        top = number * CELL_HEIGHT + 8
        for column, text, style in spans(line, look):
            x, wide = column * CELL_WIDTH + 8, len(text) * CELL_WIDTH
            color, opacity = style.get("color", FOREGROUND), ' opacity="0.6"' if 2 in style else ""
            if 7 in style:
                out.append(f'<rect x="{x:g}" y="{top}" width="{wide:g}" height="{CELL_HEIGHT}" fill="{color}"/>')
                color = BACKGROUND
            # Word by word: some browsers join blanks.
            for words in re.finditer(r"\S+(?: \S+)*", text):
                x, wide = (column + words.start()) * CELL_WIDTH + 8, len(words.group()) * CELL_WIDTH
                bold = ' font-weight="bold"' if 1 in style else ""
                out.append(
                    f'<text x="{x:g}" y="{top + 13.5:g}" fill="{color}"{bold}{opacity} textLength="{wide:g}" '
                    f'lengthAdjust="spacingAndGlyphs">{html.escape(words.group())}</text>'
                )
    return "\n".join([*out, "</g>", "</svg>", ""])


def main():
    arguments = sys.argv[1:]
    only = None
    if arguments[:1] == ["--only"] and arguments[1:2] in (["top"], ["web"]):
        only, arguments = arguments[1], arguments[2:]
    if len(arguments) > 1 or arguments[:1] and arguments[0].startswith("-"):
        print(__doc__.strip())
        sys.exit(0 if arguments[0] in ("-h", "--help") else 2)
    dist = Path(arguments[0] if arguments else REPOSITORY / "target/dist").resolve()
    with tempfile.TemporaryDirectory() as root:
        stage = Stage(dist, Path(root))
        browser = None if only == "top" else Browser()
        try:
            if browser:
                url = stage.exporter()
                draw(browser, url, EMPTY, "document.getElementById('status')?.textContent.startsWith('updated')")
            play(stage)
            if only != "web":
                (REPOSITORY / "gcgroupfs/doc/top.svg").write_text(svg(capture(stage)))
            if browser:
                page(stage, browser, url)
        finally:
            stage.close()
            if browser:
                browser.close()


main()
