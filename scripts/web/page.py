"""Tests the exporter's page in headless Chromium, at three widths, dark and light, with 0, 6 and 500 processes.

usage: page.py BUILT-TREE; scripts/test-web.sh runs it in namespaces.
"""

import json
import sys
import tempfile
import urllib.request
from pathlib import Path

from browser import Browser
from stage import Stage, wait

WIDTHS, SCHEMES = [390, 800, 1400], ["light", "dark"]

# Names that would change the document if they became HTML, or the direction of text. The kernel keeps 15
# bytes of a program's name.
COMM, GROUP = "<img src=x id=y", '<img src=x onerror=document.title="pwned">\u202e'

READY = "document.getElementById('status')?.textContent.startsWith('updated')"

# Texts that are hard to read on what is below them, and elements that do not fit into the window.
FAULTS = """(() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faults = document.documentElement.scrollWidth > innerWidth ? ["the page is wider than the window"] : [];
  for (const one of document.querySelectorAll("body *")) {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || !one.checkVisibility()) continue;
    let below = one;
    while (getComputedStyle(below).backgroundColor === "rgba(0, 0, 0, 0)") below = below.parentElement;
    const [a, b] = [light(getComputedStyle(one).color), light(getComputedStyle(below).backgroundColor)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(1)} of ${one.className}: ${one.textContent}`);
    // Buttons cut long names.
    const { left, right } = (one.closest("button, b") ?? one).getBoundingClientRect();
    if (one.matches(".picture small") && one.scrollWidth > one.clientWidth) faults.push(`cut: ${one.textContent}`);
    if (left < 0 || right > innerWidth + 1) faults.push(`not in the window: ${one.textContent}`);
  }
  return faults;
})()"""

def check(what, is_right, shown=""):
    if not is_right:
        sys.exit(f"page.py: failed: {what}: {shown}")


class Page:
    def __init__(self, browser, url):
        self.browser, self.url, self.value, self.until = browser, url, browser.value, browser.until

    def open(self, chosen=""):
        self.browser.go(self.url + chosen)
        self.until(READY)

    def names(self):
        """Returns the indented names of the rows that are shown."""
        return self.value("[...document.querySelectorAll('#tree .c-name bdi')].map((name) => name.textContent)")

    def text(self, selector="body"):
        return self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector):
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def check_looks(self, what, chosen=""):
        colors = set()
        for width in WIDTHS:
            for scheme in SCHEMES:
                self.browser.look(width, scheme)
                self.open(chosen)
                faults = self.value(FAULTS)
                check(f"{what} at {width} pixels, {scheme}", not faults, faults)
                colors.add(self.value("getComputedStyle(document.body).backgroundColor"))
        check("dark and light differ", len(colors) == len(SCHEMES), colors)
        self.browser.look(1400, "light")
        self.open()


def state(url):
    with urllib.request.urlopen(url + "state.json", timeout=20) as answer:
        return json.load(answer)


def empty(page):
    page.check_looks("no process")
    for text in ["0 processes", "nothing waits", "no governed processes"]:
        check(f"the page says {text}", text in page.text(), page.text())


def start(stage):
    """Starts six programs, of which two have hostile names, and returns them."""
    for group in ["team", "team/night", GROUP]:
        stage.gcgroupfs("mkdir", group)
    busy = ["throughput", "--duration", "3600"]
    programs = [
        stage.program(COMM, GROUP, *busy),
        stage.program(COMM, GROUP, *busy),
        stage.program("train", "team", *busy),
        stage.program("sweep", "team/night", "obey"),
        stage.program("embed", "team/night", "obey"),
        stage.program("idle", "team", "obey"),
    ]
    stage.gcgroupfs("set", "team/memory.limit", "2G")
    for program, mib in [(programs[3], 512), (programs[4], 64), (programs[5], 4096)]:
        program.stdin.write(f"alloc linear {mib << 20}\n")
        program.stdin.flush()
        program.stdout.readline()
    stage.gcgroupfs("set", f"{programs[1].pid}/compute.freeze", "1")
    return programs


def few(page, stage, programs):
    frozen = programs[1].pid
    wait("a process waits as it is frozen", lambda: any(it["kind"] == "frozen" for it in state(page.url)["waits"]))
    page.open()
    page.until("document.getElementById('waits').innerText.includes('GPU 0 turn')")
    page.check_looks("six processes")
    # Hostile names stay text.
    spelt = GROUP.replace("\u202e", "\\u{202e}")
    night = ["night", "embed", "sweep"]
    expected = [spelt, COMM, COMM, "team", "idle", "train", *night]
    check("the tree has the groups and below each its processes", page.names() == expected, page.names())
    check("no name has become HTML", page.value("document.title === 'gcgroupfs' && !document.querySelector('img')"))
    # Who waits, and events.
    check("the picture names who waits", f"{frozen} {COMM}" in page.text("#waits"), page.text("#waits"))
    check("the picture names the cause", "frozen" in page.text("#waits"), page.text("#waits"))
    check("an arrow leads to it", page.value("document.querySelectorAll('#waits path.frozen').length === 2"))
    events = page.text("#events")
    for text in [f"frozen {frozen} ({COMM.split()[0]}", f"joined {programs[2].pid} (train)", f"refused {programs[5].pid} (idle)"]:
        check(f"the events have {text}", text in events, events)
    # Sorting, filtering and folding.
    page.click("th.c-memory button")
    check("the row with most memory is first among its siblings", page.names()[0] == "team", page.names())
    check("the address keeps it", "sort=memory" in page.value("location.hash"))
    page.open("#filter=SWEEP")
    check("the filter keeps the groups above", page.names() == ["team", "night", "sweep"], page.names())
    page.click("#states .frozen")
    check("a state is a filter", page.names() == [spelt, COMM], page.names())
    page.open("#fold=team&fold=nowhere")
    check("a group is folded", page.names() == [spelt, COMM, COMM, "team"], page.names())
    page.click("tr.group:last-child .fold")
    check("and unfolded", len(page.names()) == len(expected), page.names())
    # Rows stay the same elements, so that the focus stays.
    page.value("window.focused = document.querySelector('#tree .name'); focused.focus(); focused.closest('table').caption = null")
    page.value("document.getElementById('status').textContent = ''")
    page.until(READY)
    check("the focus stays", page.value("document.activeElement === focused && focused.isConnected"))


def details(page, stage, programs):
    sweep = programs[3].pid
    page.open(f"#open={sweep}")
    page.until("document.querySelector('.details path.memory')?.getAttribute('d').includes('L')")
    page.check_looks("the details of a process", f"#open={sweep}")
    page.open(f"#open={sweep}")
    text = page.text(".details")
    current, limit = (int(stage.gcgroupfs("get", path).stdout) for path in [f"{sweep}/memory.current", "team/memory.limit"])
    check("the limit of the group above is a bar", "limit of /team" in text and "of 2.0 GiB" in text, text)
    shown = next(it for it in state(page.url)["processes"] if it["pid"] == str(sweep))
    check("memory and limit are those of the files", (shown["memory"], shown["limit"]) == (current, limit), shown)
    pages = int(Path(f"/proc/{sweep}/statm").read_text().split()[1])
    check("host memory is the kernel's", abs(shown["host_memory"] - pages * 4096) < 1 << 20, (shown, pages))
    for name in ["started", "age", "CPU time", "host memory", "GPU time", "held for it", "peak"]:
        check(f"the details have {name}", f"{name}\n" in text, text)
    page.open(f"#open={COMM}")
    check("an unknown row opens nothing", not page.value("document.querySelector('.details')"))
    # Command lines are for their users and root.
    for path in ["state.json", f"state.json?open={sweep}", "metrics"]:
        with urllib.request.urlopen(page.url + path, timeout=20) as answer:
            check(f"{path} has no command line", f"{stage.root}/sweep" not in answer.read().decode())


def actions(page, stage, programs):
    frozen = programs[1].pid
    page.open(f"#open={frozen}")
    check("without a token there is no action", "thaw" not in page.text(".details"))
    token = stage.root / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    page = Page(page.browser, stage.exporter("--token-file", str(token)))
    page.open(f"#open={frozen}")
    page.value(f"document.getElementById('token').value = {json.dumps(token.read_text())}")
    page.until("document.querySelector('.details button').textContent === 'thaw'")
    page.click(".details button")
    wait("the process is thawed", lambda: stage.gcgroupfs("get", f"{frozen}/compute.freeze").stdout == "0\n")


def many(page, stage):
    stage.crowd(500)
    wait("the state has all", lambda: len(state(page.url).get("processes", [])) == 500)
    page.check_looks("500 processes")
    check("500 processes are counted", "500 processes" in page.text("#summary"), page.text("#summary"))
    check("all have rows", page.value("document.querySelectorAll('#tree tbody tr:not(.group)').length === 500"))
    check("the picture is bounded", "more processes wait" in page.text("#waits"), page.text("#waits"))
    page.value("document.getElementById('filter').value = 'lab/user7'")
    page.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
    count = page.value("document.querySelectorAll('#tree tbody tr:not(.group)').length")
    check("the filter leaves those of a group", 20 < count < 30, count)


def gone(page, stage):
    page.open()
    rows = page.names()
    stage.children[0].kill()
    page.until("document.body.classList.contains('stale')")
    check("the page says so", "no daemon at" in page.text("#status"), page.text("#status"))
    check("the last state stays", page.names() == rows, page.names())


def main():
    browser = Browser()
    with tempfile.TemporaryDirectory() as root:
        stage = Stage(Path(sys.argv[1]).resolve(), Path(root))
        try:
            page = Page(browser, stage.exporter())
            empty(page)
            programs = start(stage)
            few(page, stage, programs)
            details(page, stage, programs)
            actions(page, stage, programs)
            many(page, stage)
            check("the page has no errors", not browser.complaints, browser.complaints)
            gone(page, stage)
        finally:
            stage.close()
            browser.close()
    print("the page shows GPUs, groups, processes, waits and events at three widths, dark and light")


main()
