// The columns of the tree.

import { bar, bytes, element, isKnown, span, sparkline } from "./draw.js";

export const percent = (value) => (isKnown(value) ? `${value} %` : "");

// Returns a column: its name, its title, the value that it is sorted by and how that is shown; and otherwise
// what it is drawn from and how, its class, and whether the largest values are first.
const column = (name, title, value, show, more) => ({
  name,
  title,
  key: (row) => value(row) ?? -1,
  of: (row) => (isKnown(value(row)) ? String(show(value(row))) : ""),
  draw: (text) => [text],
  ...more,
});

// Cells with the class "wide" are shown on wide screens only; the details of a row have them too.
const wide = { className: "wide" };
const number = { className: "number", isNumber: true };
const wideNumber = { className: "number wide", isNumber: true };

const name = { of: (row) => [row.title, row.count, row.depth, row.isFolded, row.isOpen], draw: drawName };
const state = { draw: (text) => [element("span", { className: `state ${text}` }, text)] };
const memory = { of: (row) => [row.of.memory, row.most, row.limits[0]], draw: drawMemory, isNumber: true };
const busy = { of: (row) => [row.of.gpu, row.of.history], draw: drawBusy, isNumber: true };

export const COLUMNS = [
  column("name", "Name", (row) => row.title.toLowerCase(), String, name),
  column("state", "State", (row) => row.of.state, String, state),
  column("user", "User", (row) => row.of.user, String, wide),
  column("gpu", "GPU", (row) => row.of.gpus.join(", "), String),
  column("memory", "Memory", (row) => row.of.memory, bytes, memory),
  column("swapped", "Swapped", (row) => row.of.swapped || null, bytes, wideNumber),
  column("busy", "GPU time", (row) => row.of.gpu, percent, busy),
  column("held", "Held", (row) => row.of.held || null, percent, wideNumber),
  column("priority", "Priority", (row) => row.of.priority, String, { className: "number" }),
  column("share", "Share", (row) => row.of.share, percent, wideNumber),
  column("age", "Age", (row) => row.age, span, number),
  column("cpu", "CPU time", (row) => row.cpu, span, wideNumber),
  column("host", "Host memory", (row) => row.host, bytes, wideNumber),
];

export function owner(one) {
  return [
    ["job ", one.job],
    ["pod ", one.pod],
    ["container ", one.container],
  ]
    .filter(([, value]) => value !== "")
    .map(([name, value]) => name + value)
    .join(", ");
}

function drawName([title, count], row, view) {
  const fold = element(
    "button",
    {
      type: "button",
      className: "fold",
      "aria-expanded": !row.isFolded,
      "aria-label": "contents",
      onclick: () => view.toggle(row.path),
    },
    row.isFolded ? "▸" : "▾",
  );
  const name = element(
    "button",
    {
      type: "button",
      className: "name",
      "aria-expanded": row.isOpen,
      title: row.path,
      onclick: () => view.open(row.isOpen ? "" : row.path),
    },
    ...(row.isGroup ? [] : [element("span", { className: "pid" }, row.path), " "]),
    element("bdi", {}, title),
  );
  const place = element(
    "span",
    { className: "place" },
    ...(row.isGroup ? [fold] : []),
    name,
    ...(row.isGroup ? [element("small", {}, count)] : []),
  );
  place.style.paddingLeft = `${row.depth * 1.1 + (row.isGroup ? 0 : 1.3)}rem`;
  return [place];
}

// Draws the use and the smallest limit above; what other members use of a group's limit is paler.
function drawMemory(_, row) {
  const { memory, limit } = row.of;
  const [binding] = row.limits;
  const others = binding ? Math.max(0, binding.memory - memory) : 0;
  const kind = binding && binding.memory >= 0.95 * limit ? "bad" : binding ? "used" : "free";
  const title = binding
    ? `limit of ${binding.name}: ${bytes(limit)}, used ${bytes(binding.memory)}`
    : "no limit";
  return [
    element(
      "span",
      { className: "amount" },
      bytes(memory),
      element("small", {}, binding ? ` of ${bytes(limit)}` : ""),
    ),
    bar(
      [
        [kind, row.most ? memory / row.most : 0],
        ["others", row.most ? others / row.most : 0],
      ],
      title,
    ),
  ];
}

function drawBusy([gpu, history], row) {
  return [
    element("span", { className: "amount" }, percent(gpu)),
    sparkline(history, 100 * Math.max(1, row.of.gpus.length)),
  ];
}
