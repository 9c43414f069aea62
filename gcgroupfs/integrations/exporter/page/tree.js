// The tree of groups and processes: its rows.

import { COLUMNS, owner } from "./columns.js";
import { details } from "./details.js";
import { element, isKnown, update } from "./draw.js";

// Returns all rows by their paths, and below each path its rows. A process or group whose group is not shown
// is below the nearest one that is.
function allRows(state) {
  const rows = new Map([["", { path: "", isGroup: true, of: {}, limits: [], below: [], title: "/" }]]);
  const total = state.gpus.reduce((sum, gpu) => sum + (gpu.total ?? 0), 0);
  const parent = (path) => {
    while (!rows.has(path)) path = path.slice(0, Math.max(0, path.lastIndexOf("/")));
    return rows.get(path);
  };
  const add = (row, above) => {
    const own = isKnown(row.of.own_limit)
      ? [
          {
            name: row.isGroup ? `/${row.path}` : "the process",
            limit: row.of.own_limit,
            memory: row.of.memory,
          },
        ]
      : [];
    row.limits = [...own, ...above.limits].sort((a, b) => a.limit - b.limit);
    row.most = row.of.limit ?? total;
    row.above = above;
    row.below = [];
    rows.set(row.path, row);
    above.below.push(row);
  };
  for (const of of state.groups) {
    const at = of.path.lastIndexOf("/");
    add(
      { path: of.path, isGroup: true, of, title: of.path.slice(at + 1), count: of.processes },
      parent(of.path.slice(0, Math.max(0, at))),
    );
  }
  for (const of of state.processes) {
    const [start, cpu, host] = [
      of.start,
      isKnown(of.cpu_usec) ? of.cpu_usec / 1e6 : undefined,
      of.host_memory,
    ];
    const row = { path: of.pid, isGroup: false, of, title: of.comm, start, cpu, host };
    add(row, parent(of.group ?? ""));
    for (let above = row.above; above; above = above.above) {
      if (isKnown(start)) above.start = Math.min(above.start ?? start, start);
      if (isKnown(cpu)) above.cpu = (above.cpu ?? 0) + cpu;
      if (isKnown(host)) above.host = (above.host ?? 0) + host;
    }
  }
  for (const row of rows.values())
    row.age = isKnown(row.start) ? Math.max(0, Math.round(state.time - row.start)) : undefined;
  return rows;
}

function matches(row, filter) {
  const of = row.of;
  const texts = [
    row.title,
    row.isGroup ? `/${row.path}` : row.path,
    of.user,
    of.state,
    ...(row.isGroup ? [] : [`/${of.group ?? ""}`, owner(of.owner)]),
  ];
  return texts.some((text) => text.toLowerCase().includes(filter));
}

// Returns the rows that are shown: of each group its processes, and then the groups in it, sorted among
// themselves. A group stays if something below it matches the filter.
function shownRows(top, view) {
  const column = COLUMNS.find((one) => one.name === view.sort) ?? COLUMNS[0];
  const sign = (column.isNumber ? -1 : 1) * (view.isReversed ? -1 : 1);
  const order = (a, b) => {
    const [x, y] = [column.key(a), column.key(b)];
    if (a.isGroup !== b.isGroup) return a.isGroup ? 1 : -1;
    if (x !== y) return (x < y ? -1 : 1) * sign;
    return a.path.localeCompare(b.path, undefined, { numeric: true });
  };
  const filter = view.filter.toLowerCase();
  const visit = (above, depth) =>
    [...above.below].sort(order).flatMap((row) => {
      const below = visit(row, depth + 1);
      if (below.length === 0 && !matches(row, filter)) return [];
      row.depth = depth;
      row.isFolded = view.folded.has(row.path);
      row.isOpen = view.opened === row.path;
      return [row, ...(row.isFolded ? [] : below)];
    });
  return visit(top, 0);
}

const drawn = new Map();

// Draws the table; elements of rows that stay are kept, and so is the focus.
export function drawTree(state, view) {
  const rows = shownRows(allRows(state).get(""), view);
  const body = document.querySelector("#tree tbody");
  const shown = rows.flatMap((row) => {
    const line =
      drawn.get(row.path) ??
      element(
        "tr",
        {},
        ...COLUMNS.map((one) => element("td", { className: `c-${one.name} ${one.className ?? ""}` })),
      );
    drawn.set(row.path, line);
    line.className = row.isGroup ? "group" : "";
    COLUMNS.forEach((one, at) => {
      const from = one.of(row);
      update(line.children[at], from, () => one.draw(from, row, view));
    });
    if (!row.isOpen) return [line];
    const below =
      drawn.get("details") ??
      element("tr", { className: "open" }, element("td", { colSpan: COLUMNS.length }));
    drawn.set("details", below);
    update(
      below.firstChild,
      [row.of, row.limits, state.history, row.age, state.writable, state.events[0]?.number],
      () => details(row, state, view),
    );
    return [line, below];
  });
  for (const path of drawn.keys())
    if (path !== "details" && !rows.some((row) => row.path === path)) drawn.delete(path);
  if (shown.length === 0) {
    const text =
      view.filter === ""
        ? "no governed processes; gcgroupfs run -- COMMAND starts one"
        : "nothing matches the filter";
    shown.push(element("tr", {}, element("td", { className: "faint", colSpan: COLUMNS.length }, text)));
  }
  if (shown.length === body.children.length && shown.every((line, at) => line === body.children[at])) return;
  const focused = document.activeElement;
  body.replaceChildren(...shown);
  if (body.contains(focused)) focused.focus({ preventScroll: true });
}
