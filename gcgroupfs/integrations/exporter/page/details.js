// The details of a row.

import { owner, percent } from "./columns.js";
import { bar, bytes, chart, clock, element, isKnown, span } from "./draw.js";

function facts(row, state) {
  const { of } = row;
  const seconds = (usec) => (usec ? span(usec / 1e6) : undefined);
  return [
    ["group", row.isGroup ? undefined : isKnown(of.group) ? `/${of.group}` : "?"],
    [row.isGroup ? "owner" : "user", of.user],
    ["job", row.isGroup ? undefined : owner(of.owner) || undefined],
    ["processes", of.processes],
    ["GPUs", of.gpus.join(", ") || "none"],
    ["state", of.state],
    [
      "lease",
      of.lease
        ? of.lease.expired
          ? `expired: ${of.lease.action}`
          : `${span(of.lease.seconds)}, then ${of.lease.action}`
        : undefined,
    ],
    ["memory", bytes(of.memory)],
    ["peak", bytes(of.peak)],
    ["swapped", of.swapped ? bytes(of.swapped) : undefined],
    ["refused allocations", of.refused || undefined],
    ["priority", of.priority],
    ["share", isKnown(of.share) ? percent(of.share) : undefined],
    [
      "quota",
      isKnown(of.quota_usec) ? `${of.quota_usec / 1000} ms per ${of.period_usec / 1000} ms` : undefined,
    ],
    ["GPU now", percent(of.gpu)],
    ["held for it", percent(of.held)],
    ["GPU time", seconds(of.gpu_usec)],
    ["waited for the GPU", seconds(of.compute_waited_usec)],
    ["waited for memory", seconds(of.memory_waited_usec)],
    [
      row.isGroup ? "oldest process" : "started",
      isKnown(row.start) ? `${new Date(row.start * 1000).toLocaleString("sv-SE")}` : undefined,
    ],
    ["age", isKnown(row.age) ? span(row.age) : undefined],
    ["CPU time", isKnown(row.cpu) ? span(row.cpu) : undefined],
    ["host memory", isKnown(row.host) ? bytes(row.host) : undefined],
  ].filter(([, value]) => isKnown(value));
}

// Returns the details of a row: what is known of it, its limits as bars, its history and its events.
export function details(row, state, view) {
  const most = 100 * Math.max(1, row.of.gpus.length);
  const limits = row.limits.map((one) =>
    element(
      "li",
      {},
      element("span", {}, `limit of ${one.name}: ${bytes(one.memory)} of ${bytes(one.limit)}`),
      bar([[one.memory >= 0.95 * one.limit ? "bad" : "used", one.limit ? one.memory / one.limit : 1]], ""),
    ),
  );
  const waits = (row.of.waits ?? [])
    .filter((one) => one.usec > 0)
    .map((one) => {
      const what = { turn: "turn", memory: "memory turn" }[one.for] ?? "memory";
      const whom = `${one.pid} (${one.comm}) on GPU ${one.gpu}`;
      return element("li", {}, `waited ${span(one.usec / 1e6)} for the ${what} of ${whom}`);
    });
  const isOf = (event) =>
    row.isGroup
      ? event.group === row.path || (event.group ?? "").startsWith(`${row.path}/`)
      : String(event.pid) === row.path;
  const events = state.events
    .filter(isOf)
    .slice(0, 5)
    .map((event) => element("li", {}, `${clock(event.time)} ${event.line}`));
  const isFrozen = ["freezing", "frozen"].includes(row.of.state);
  const action = element(
    "button",
    { type: "button", onclick: () => view.freeze(row.path, !isFrozen) },
    isFrozen ? "thaw" : "freeze",
  );
  return [
    element(
      "div",
      { className: "details" },
      element(
        "dl",
        {},
        ...facts(row, state).map(([name, value]) =>
          element("div", {}, element("dt", {}, name), element("dd", {}, value)),
        ),
      ),
      element(
        "div",
        {},
        element(
          "p",
          { className: "key" },
          element("span", { className: "key-busy" }, `GPU time, of ${most} %`),
          " ",
          element("span", { className: "key-memory" }, `memory, of ${bytes(row.most)}`),
        ),
        chart(`${row.path}: GPU time and memory in the last 30 minutes`, state.history ?? [], state.time, [
          most,
          row.most,
        ]),
        element("ul", { className: "limits" }, ...limits),
        element("ul", { className: "events" }, ...waits),
        element("ol", { className: "events" }, ...events),
        ...(state.writable ? [action] : []),
      ),
    ),
  ];
}
