// Elements, texts and curves.

const SVG = "http://www.w3.org/2000/svg";

// Span of the curves, seconds.
export const SPAN = 1800;

// Longest time between two points of a stroke, seconds.
const GAP = 30;

// Names are chosen by other users. They only ever become text nodes, never HTML, and characters that are
// invisible or change the direction of text are spelt out.
function visible(text) {
  return String(text).replace(
    /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (c) => `\\u{${c.codePointAt(0).toString(16)}}`,
  );
}

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-")) made.setAttribute(key, value);
    else made[key] = typeof value === "string" ? visible(value) : value;
  }
  made.append(...children.map((child) => (child instanceof Node ? child : visible(child))));
  return made;
}

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Replaces what an element contains, if it is made of something else than before.
export function update(target, from, make) {
  const made = JSON.stringify(from);
  if (target.madeFrom === made) return;
  target.madeFrom = made;
  target.replaceChildren(...make());
}

export function isKnown(value) {
  return value !== null && value !== undefined;
}

export function bytes(value) {
  if (!isKnown(value)) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

// Returns a time in its two largest units.
export function span(seconds) {
  if (!isKnown(seconds)) return "";
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const at = Math.max(
    0,
    units.findIndex(([, size]) => seconds >= size),
  );
  if (seconds < 60) return `${seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds)} s`;
  const [[unit, size], [small, part]] = [units[at], units[at + 1]];
  return `${Math.floor(seconds / size)} ${unit} ${Math.floor((seconds % size) / part)} ${small}`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

// Returns a bar of parts of a whole: pairs of a class and a number from 0 to 1.
export function bar(parts, title) {
  const filled = parts.map(([kind, part]) => {
    const made = element("i", { className: kind });
    made.style.width = `${(100 * Math.min(1, part)).toFixed(1)}%`;
    return made;
  });
  return element("span", { className: "meter", title }, ...filled);
}

// Returns the path of a line through points of [x, y]; an unknown y ends a stroke, as does a gap.
function strokes(points, gap, height) {
  let path = "",
    last = null;
  for (const [x, y] of points) {
    if (!isKnown(y)) {
      last = null;
      continue;
    }
    const down = height * (1 - Math.min(1, Math.max(0, y)));
    path += `${last !== null && x - last <= gap ? "L" : "M"}${x},${down.toFixed(1)}`;
    last = x;
  }
  return path;
}

// Returns curves of the last half hour. `points`: [time, percent, bytes]; `most`: of percent and bytes.
export function chart(label, points, end, most) {
  const of = (at) =>
    points.map((point) => [
      point[0] - end + SPAN,
      isKnown(point[at]) && most[at - 1] ? point[at] / most[at - 1] : null,
    ]);
  const line = (kind, at) =>
    svg("path", {
      class: kind,
      d: strokes(
        of(at).filter(([x]) => x >= 0),
        GAP,
        100,
      ),
    });
  const axes = [0, 50, 100].map((y) => svg("line", { class: "axis", x1: 0, x2: SPAN, y1: y, y2: y }));
  return element(
    "figure",
    {},
    svg(
      "svg",
      { viewBox: `0 0 ${SPAN} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      ...axes,
      line("memory", 2),
      line("busy", 1),
    ),
    element("figcaption", {}, element("span", {}, "30 min ago"), element("span", {}, "now")),
  );
}

// Returns a small curve of percentages.
export function sparkline(percents, most) {
  const points = percents.map((value, at) => [
    at + 36 - percents.length,
    isKnown(value) ? value / most : null,
  ]);
  return svg(
    "svg",
    { class: "spark", viewBox: "0 -1 36 18", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: "busy", d: strokes(points, 1, 16) }),
  );
}

// Returns arrows between rows at the left and rows at the right: [from, to, class, width].
export function arrows(lines, rows, height) {
  const middle = (row) => (row + 0.5) * height;
  return svg(
    "svg",
    { class: "arrows", width: 56, height: rows * height, "aria-hidden": "true" },
    ...lines.flatMap(([from, to, kind, width]) => {
      const [a, b] = [middle(from), middle(to)];
      return [
        svg("path", { class: kind, "stroke-width": width, d: `M0,${a}C28,${a} 20,${b} 48,${b}` }),
        svg("path", { class: `${kind} head`, d: `M56,${b}l-9,-5v10z` }),
      ];
    }),
  );
}
