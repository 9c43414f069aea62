// Who waits for whom: processes that wait at the left, and at the right the processes that have the turn or
// the memory, or another cause.

import { arrows, element, update } from "./draw.js";

// Height of a row, as in the style sheet, pixels.
const HEIGHT = 44;

// Maximum number of processes that wait.
const MOST = 8;

function node(title, text, path, open) {
  const name = element("bdi", {}, title);
  const shown =
    path === null
      ? element("b", {}, name)
      : element("button", { type: "button", onclick: () => open(path) }, name);
  return element("li", { title: `${title}: ${text}` }, shown, element("small", {}, text));
}

// `open`: called with the path of a process to show.
export function drawWaits(waits, open) {
  update(document.getElementById("waits"), waits, () => {
    if (waits.length === 0) return [element("p", { className: "faint" }, "nothing waits")];
    const shown = waits.slice(0, MOST);
    const causes = new Map(),
      lines = [];
    for (const [from, wait] of shown.entries()) {
      for (const cause of wait.causes) {
        const key = `${cause.pid} ${cause.text}`;
        if (!causes.has(key)) causes.set(key, { ...cause, to: causes.size });
        lines.push([from, causes.get(key).to, wait.kind, 1 + cause.percent / 25]);
      }
    }
    const left = shown.map((wait) =>
      node(`${wait.pid} ${wait.comm}`, `waits ${wait.percent} %, priority ${wait.priority}`, wait.pid, open),
    );
    const right = [...causes.values()].map((cause) =>
      cause.pid
        ? node(
            `${cause.pid} ${cause.comm}`,
            `${cause.text}${cause.priority === null ? "" : `, priority ${cause.priority}`}`,
            cause.pid,
            open,
          )
        : node(cause.text, "", null, open),
    );
    const more = waits.length - shown.length;
    return [
      element(
        "div",
        { className: "picture" },
        element("ul", {}, ...left),
        arrows(lines, Math.max(left.length, right.length), HEIGHT),
        element("ul", {}, ...right),
      ),
      ...(more > 0 ? [element("p", { className: "faint" }, `${more} more processes wait`)] : []),
    ];
  });
}
