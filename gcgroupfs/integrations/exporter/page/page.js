// Reads the state every two seconds and draws the page. What is chosen on the page is kept in its address.

import { COLUMNS } from "./columns.js";
import { bytes, chart, clock, element, isKnown, update } from "./draw.js";
import { drawTree } from "./tree.js";
import { drawWaits } from "./waits.js";

const PERIOD_MS = 2000;

const byId = (id) => document.getElementById(id);

// What is chosen on the page.
const view = {
  read() {
    const words = new URLSearchParams(location.hash.slice(1));
    this.filter = words.get("filter") ?? "";
    this.sort = words.get("sort") ?? "name";
    this.isReversed = words.has("reversed");
    this.opened = words.get("open") ?? "";
    this.folded = new Set(words.getAll("fold"));
  },
  set(changes) {
    Object.assign(this, changes);
    const words = new URLSearchParams();
    if (this.filter !== "") words.set("filter", this.filter);
    if (this.sort !== "name") words.set("sort", this.sort);
    if (this.isReversed) words.set("reversed", "");
    if (this.opened !== "") words.set("open", this.opened);
    for (const path of this.folded) words.append("fold", path);
    history.replaceState(null, "", `#${words}`);
    draw();
  },
  toggle(path) {
    if (!this.folded.delete(path)) this.folded.add(path);
    this.set({});
  },
  open(path) {
    this.set({ opened: path });
    refresh();
  },
  sortBy(name) {
    this.set({ sort: name, isReversed: this.sort === name && !this.isReversed });
  },
  async freeze(path, frozen) {
    const answer = await fetch("freeze", {
      method: "POST",
      headers: { Authorization: `Bearer ${byId("token").value}` },
      body: JSON.stringify({ path, frozen }),
    }).catch((error) => ({ ok: false, text: async () => String(error) }));
    if (!answer.ok) alert(await answer.text());
    await refresh();
  },
};

// The last state of a daemon that answered.
let state = null;

function gpuCard(gpu) {
  const words = [
    [gpu.temperature, " °C"],
    [isKnown(gpu.power_mw) ? Math.round(gpu.power_mw / 1000) : null, " W"],
    [gpu.governed, " governed"],
    [gpu.unmanaged, " unmanaged"],
  ]
    .filter(([value]) => isKnown(value))
    .map(([value, unit]) => value + unit);
  return element(
    "div",
    { className: "gpu" },
    element("h3", {}, `${gpu.index} ${gpu.model}`, element("small", {}, words.join(", "))),
    element(
      "p",
      { className: "key" },
      element("span", { className: "key-busy" }, `${gpu.utilization ?? "?"} % busy`),
      " ",
      element("span", { className: "key-memory" }, `${bytes(gpu.used)} of ${bytes(gpu.total)}`),
    ),
    chart(`GPU ${gpu.index}: utilization and memory in the last 30 minutes`, gpu.history ?? [], state.time, [
      100,
      gpu.total,
    ]),
  );
}

function drawSummary() {
  const number = (count, one, many) => `${count} ${count === 1 ? one : many}`;
  byId("summary").textContent = [
    number(state.processes.length + state.processes_dropped, "process", "processes"),
    number(state.groups.length + state.groups_dropped, "group", "groups"),
    `policy ${state.policy}`,
  ].join(", ");
  const counts = new Map();
  for (const one of state.processes) counts.set(one.state, (counts.get(one.state) ?? 0) + 1);
  const states = [...counts].sort(([a], [b]) => (a < b ? -1 : 1));
  update(byId("states"), [states, view.filter], () =>
    states.map(([name, count]) =>
      element(
        "button",
        {
          type: "button",
          className: `state ${name}`,
          "aria-pressed": view.filter === name,
          onclick: () => {
            byId("filter").value = view.filter === name ? "" : name;
            view.set({ filter: byId("filter").value });
          },
        },
        `${count} ${name}`,
      ),
    ),
  );
  const dropped = [
    [state.processes_dropped, "processes"],
    [state.groups_dropped, "groups"],
  ].filter(([count]) => count > 0);
  const texts = dropped.map(([count, what]) => `${count} ${what} left out by --max-${what}`);
  byId("dropped").textContent = texts.join("; ");
}

function drawHead() {
  const head = COLUMNS.map((one) => {
    const isSorted = one.name === view.sort;
    const direction = isSorted
      ? Boolean(one.isNumber) !== view.isReversed
        ? "descending"
        : "ascending"
      : "none";
    const sort = element(
      "button",
      { type: "button", onclick: () => view.sortBy(one.name) },
      one.title,
      isSorted ? (direction === "ascending" ? " ▴" : " ▾") : "",
    );
    return element("th", { className: `c-${one.name} ${one.className ?? ""}`, "aria-sort": direction }, sort);
  });
  update(document.querySelector("#tree thead"), [view.sort, view.isReversed], () => [
    element("tr", {}, ...head),
  ]);
  byId("sort").value = view.sort;
}

function drawEvents() {
  update(byId("events"), state.events[0]?.number ?? 0, () =>
    state.events.length === 0
      ? [element("li", { className: "faint" }, "none")]
      : state.events.map((event) =>
          element("li", { className: event.what }, element("time", {}, clock(event.time)), " ", event.line),
        ),
  );
}

function draw() {
  if (state === null) return;
  byId("access").hidden = !state.writable;
  byId("gpus").replaceChildren(...state.gpus.map(gpuCard));
  drawSummary();
  drawWaits(state.waits, (path) => {
    view.open(path);
    document.querySelector("#tree .open")?.scrollIntoView({ block: "center" });
  });
  drawHead();
  drawTree(state, view);
  drawEvents();
}

async function refresh() {
  let error = null;
  try {
    const answer = await fetch(`state.json?open=${encodeURIComponent(view.opened)}`);
    if (!answer.ok) throw new Error(await answer.text());
    const next = await answer.json();
    error = next.error;
    if (error === null) state = next;
  } catch (failure) {
    error = `no answer: ${failure.message}`;
  }
  document.body.classList.toggle("stale", error !== null);
  byId("status").textContent = error ?? `updated ${clock(state.time)}`;
  draw();
}

async function main() {
  view.read();
  byId("filter").value = view.filter;
  byId("filter").addEventListener("input", (event) => view.set({ filter: event.target.value }));
  byId("sort").append(...COLUMNS.map((one) => element("option", { value: one.name }, `Sort: ${one.title}`)));
  byId("sort").addEventListener("change", (event) =>
    view.set({ sort: event.target.value, isReversed: false }),
  );
  for (;;) {
    // A page in the background loads nothing.
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, PERIOD_MS));
  }
}

main();
