"use strict";

// Texts from the daemon are chosen by other users: they only ever become text nodes, never HTML.

const PERIOD_MS = 2000;
const WINDOW_S = 1800;
const SVG = "http://www.w3.org/2000/svg";

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) made[key] = value;
  made.append(...children);
  return made;
}

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function bytes(value) {
  if (value === null || value === undefined) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

function known(value, unit) {
  return value === null || value === undefined ? "?" : `${value}${unit}`;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString();
}

// Returns a line through the points that are known; a gap of the history ends a stroke.
function curve(kind, points) {
  let path = "", last = null;
  for (const [time, value] of points) {
    if (value === null) { last = null; continue; }
    const joined = last !== null && time - last < 30;
    path += `${joined ? "L" : "M"}${time},${(100 - 100 * Math.min(1, value)).toFixed(1)}`;
    last = time;
  }
  return svg("path", { class: kind, d: path });
}

function gpuCard(gpu, history, end) {
  const busy = [], memory = [];
  for (const point of history) {
    const then = point.gpus.find((one) => one.uuid === gpu.uuid);
    if (!then) continue;
    const x = point.time - end + WINDOW_S;
    if (x < 0) continue;
    busy.push([x, then.utilization === null ? null : then.utilization / 100]);
    memory.push([x, then.used === null || !gpu.total ? null : then.used / gpu.total]);
  }
  const label = `GPU ${gpu.index}: utilization and memory in the last 30 minutes`;
  const chart = svg("svg", { viewBox: `0 0 ${WINDOW_S} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    ...[0, 50, 100].map((y) => svg("line", { class: "axis", x1: 0, x2: WINDOW_S, y1: y, y2: y })),
    curve("memory", memory), curve("busy", busy));
  const watts = gpu.power_mw === null ? null : Math.round(gpu.power_mw / 1000);
  return element("div", { className: "gpu" },
    element("h3", {}, `${gpu.index} ${gpu.model}`),
    element("p", {},
      element("span", { className: "key-busy" }, `${known(gpu.utilization, " %")} busy`), ", ",
      element("span", { className: "key-memory" }, `${bytes(gpu.used)} of ${bytes(gpu.total)}`),
      `, ${known(gpu.temperature, " °C")}, ${known(watts, " W")}`),
    chart,
    element("p", {}, `${known(gpu.governed, "")} governed, ${known(gpu.unmanaged, "")} unmanaged processes`));
}

function row(cells) {
  return element("tr", {}, ...cells.map((cell) => {
    if (cell instanceof Node) return element("td", {}, cell);
    const isNumber = typeof cell === "object";
    return isNumber ? element("td", { className: "number" }, cell.number) : element("td", {}, cell);
  }));
}

function table(id, titles, rows) {
  const head = element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", {}, title))));
  const target = document.getElementById(id);
  if (rows.length === 0) target.replaceChildren(element("tbody", {}, row(["none"])));
  else target.replaceChildren(head, element("tbody", {}, ...rows.map(row)));
}

function list(id, texts) {
  const items = texts.length === 0 ? [element("li", { className: "none" }, "none")] : texts.map((text) => element("li", {}, text));
  document.getElementById(id).replaceChildren(...items);
}

async function freeze(path, frozen) {
  const token = document.getElementById("token").value;
  const answer = await fetch("freeze", {
    method: "POST",
    headers: { Authorization: `Bearer ${token}` },
    body: JSON.stringify({ path, frozen }),
  }).catch((error) => ({ ok: false, text: async () => String(error) }));
  if (!answer.ok) alert(await answer.text());
  await refresh();
}

// Cells at the end of a row: the state, and the action where it is allowed.
function stateCells(state, path, status) {
  const isFrozen = ["freezing", "frozen"].includes(status);
  const shown = element("span", { className: isFrozen ? "frozen" : "" }, status);
  if (!state.writable || path === "") return [shown];
  const button = element("button", { type: "button" }, isFrozen ? "thaw" : "freeze");
  button.addEventListener("click", () => freeze(path, !isFrozen));
  return [shown, button];
}

function owner(one) {
  return [["job ", one.job], ["pod ", one.pod], ["container ", one.container]]
    .filter(([, value]) => value !== "").map(([name, value]) => name + value).join(", ");
}

function show(state) {
  const status = document.getElementById("status");
  status.className = state.error ? "bad" : "";
  status.textContent = state.error ? state.error : `updated ${clock(state.time)}`;
  document.getElementById("access").hidden = !state.writable;
  const last = state.history[state.history.length - 1];
  const end = state.time ?? (last ? last.time : 0);
  document.getElementById("gpus").replaceChildren(...(state.gpus ?? []).map((gpu) => gpuCard(gpu, state.history, end)));
  list("waits", state.waits.map((wait) => `${wait.pid} (${wait.comm}): ${wait.reason}; ${wait.percent} % of the time`));
  const action = state.writable ? [""] : [];
  table("groups", ["group", "processes", "memory", "limit", "swapped", "state", ...action], (state.groups ?? []).map((group) => [
    `/${group.path}`, { number: group.processes }, { number: bytes(group.memory) },
    { number: group.limit === null ? "max" : bytes(group.limit) }, { number: bytes(group.swapped) },
    ...stateCells(state, group.path, group.state),
  ]));
  table("processes",
    ["pid", "name", "user", "group", "job", "GPUs", "memory", "limit", "swapped", "priority", "state", ...action],
    (state.processes ?? []).map((one) => [
      { number: one.pid }, one.comm, one.user, one.group === null ? "?" : `/${one.group}`, owner(one.owner),
      one.gpus.join(", "), { number: bytes(one.memory) }, { number: one.limit === null ? "max" : bytes(one.limit) },
      { number: bytes(one.swapped) }, { number: known(one.priority, "") }, ...stateCells(state, one.pid, one.state),
    ]));
  const events = state.events.map((event) => `${clock(event.time)} ${event.text}`);
  if (state.processes_dropped) events.unshift(`${state.processes_dropped} more processes are not shown`);
  list("events", events);
}

async function refresh() {
  try {
    const answer = await fetch("state.json");
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
  } catch (error) {
    const status = document.getElementById("status");
    status.className = "bad";
    status.textContent = `no answer: ${error.message}`;
  }
}

async function main() {
  for (;;) {
    // A page in the background loads nothing.
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, PERIOD_MS));
  }
}

main();
