// The console's only script of its own: live updates, charts, copying, and the theme.
"use strict";

// ---- Live updates: the server sends the content anew, and only what differs is changed. ----

// Makes `old` like `fresh` in place, so that focus, selection, scroll and typed text stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  for (const { name } of [...old.attributes]) {
    // Whether details are open is the reader's choice, and not the server's.
    if (!fresh.hasAttribute(name) && name !== "open" && name !== "data-tried") old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  }
  if (old.hasAttribute("data-chart")) return; // Its inside is the chart's.
  const olds = [...old.childNodes], freshs = [...fresh.childNodes];
  olds.slice(freshs.length).forEach((each) => each.remove());
  freshs.forEach((each, at) => (at < olds.length ? morph(olds[at], each) : old.append(each)));
}

function parsed(text) {
  return new DOMParser().parseFromString(text, "text/html").body;
}

const RETRY_MS = 5000;
let source = null;

function follow() {
  const content = document.getElementById("content");
  const where = content && content.dataset.live;
  if (!where || document.hidden) return;
  const state = document.getElementById("live-state");
  const say = (text, name) => { state.textContent = text; state.dataset.state = name; };
  source = new EventSource(where);
  source.addEventListener("open", () => say("Live", "on"));
  source.addEventListener("content", (event) => {
    const fresh = content.cloneNode(false);
    fresh.append(...parsed(event.data).childNodes);
    morph(content, fresh);
    draw();
  });
  source.addEventListener("sections", (event) => {
    const sections = document.getElementById("sections");
    const fresh = parsed(event.data).firstElementChild;
    if (sections && fresh) morph(sections, fresh);
  });
  source.addEventListener("error", () => {
    say("Reconnecting", "off");
    // A refusal closes it for good; a lost connection it mends by itself.
    if (source && source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(() => { if (!source) follow(); }, RETRY_MS);
    }
  });
}

// A page that is not seen costs the server nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { if (source) source.close(); source = null; } else if (!source) follow();
});

// ---- Charts. ----

const charts = new WeakMap();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${+(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${+(ms / 60000).toFixed(1)} min`;
  return `${+(ms / 3600000).toFixed(1)} h`;
}

function amount(value) {
  return Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

function draw() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    const told = box.dataset.chart, known = charts.get(box);
    if (known && known.told === told) continue;
    const given = JSON.parse(told);
    if (known) { known.chart.setData(given.data); known.told = told; continue; }
    const say = given.unit === "ms" ? span : amount;
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false }, font: "12px system-ui" };
    const shown = (_, value) => (value == null ? "—" : say(value));
    const chart = new uPlot({
      width: box.clientWidth, height: 220, legend: { live: true }, cursor: { y: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.1] } },
      axes: [{ ...axis }, { ...axis, size: 64, values: (_, ticks) => ticks.map(say) }],
      series: [{}, ...given.series.map((label, at) => ({
        label, value: shown, width: 2, stroke: colour(`--series-${at + 1}`),
        fill: `${colour(`--series-${at + 1}`)}22`, points: { show: false }, spanGaps: true,
      }))],
    }, given.data, box);
    charts.set(box, { chart, told });
    new ResizeObserver(() => chart.setSize({ width: box.clientWidth, height: 220 })).observe(box);
  }
}

function redraw() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    const known = charts.get(box);
    if (known) { known.chart.destroy(); charts.delete(box); }
  }
  draw();
}

// ---- Small things. ----

document.addEventListener("click", async (event) => {
  const button = event.target.closest && event.target.closest("[data-copy]");
  if (button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch (_) {
      // Without a secure context there is no clipboard: the text is selected instead.
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }
  if (event.target.closest && event.target.closest("#theme")) {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("streamlog-theme", root.dataset.theme); } catch (_) { /* Not kept. */ }
    redraw();
  }
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// "/" begins a search, as in other tools.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
  const field = document.querySelector("#content input[type=search]");
  if (field) { event.preventDefault(); field.focus(); field.select(); }
});

// On a narrow screen, the ways between pages are wider than it: the current one is shown.
for (const row of document.querySelectorAll("nav")) {
  const current = row.querySelector("[aria-current]");
  if (current) row.scrollLeft = current.offsetLeft - row.offsetLeft - (row.clientWidth - current.offsetWidth) / 2;
}

draw();
follow();
