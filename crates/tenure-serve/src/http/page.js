// Keeps the live page up to date: each event of the feed is a snapshot of the server. The feed is read with `fetch`,
// since an EventSource cannot send a token.
"use strict";

// Milliseconds until the next attempt to connect, and without an event until the connection counts as dead.
const RETRY_MS = 1000;
const SILENCE_MS = 10000;
const SWITCHES = 12;
const SVG = "http://www.w3.org/2000/svg";

const link = document.getElementById("link");
const form = document.getElementById("token");
const secret = document.getElementById("secret");

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const milliseconds = (ms) => (ms === null ? "–" : `${ms.toFixed(1)} ms`);

function bytes(count) {
  if (count < 1e6) return `${(count / 1e3).toFixed(1)} kB`;
  return count < 1e9 ? `${(count / 1e6).toFixed(1)} MB` : `${(count / 1e9).toFixed(1)} GB`;
}

function duration(seconds) {
  const [whole, two] = [Math.floor(seconds), (number) => String(number).padStart(2, "0")];
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

// Unchanged text is not written again, so that the reader's selection survives.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Gives an element as many children as there are items, and shows one item in each.
function fill(parent, items, make, show) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(make());
  items.forEach((item, at) => show(parent.children[at], item));
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function showFacts(snapshot) {
  const sum = (name) => String(snapshot.models.reduce((total, model) => total + model[name], 0));
  const ready = snapshot.models.filter((model) => model.state === "ready").length;
  const facts = [
    `${ready} of ${snapshot.models.length}`,
    sum("queued"),
    sum("answered"),
    sum("switches"),
    duration(snapshot.uptime_s),
  ];
  document.querySelectorAll("dd").forEach((fact, at) => setText(fact, facts[at]));
}

function showTier(row, tier) {
  setText(row.children[0], `${tier.name}: ${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)}`);
  row.children[1].max = tier.capacity_bytes;
  row.children[1].value = tier.used_bytes;
}

function showSwitch(item, { model, took_ms, ago_s }) {
  setText(item.children[0], model);
  setText(item.children[1], milliseconds(took_ms));
  setText(item.children[2], `${Math.floor(ago_s)} s ago`);
}

function showLatencies(cell, latencies) {
  if (latencies.length === 0) {
    setText(cell, "–");
    return;
  }
  let line = cell.querySelector("polyline");
  if (!line) {
    const drawing = document.createElementNS(SVG, "svg");
    drawing.setAttribute("viewBox", "0 0 96 24");
    drawing.setAttribute("role", "img");
    line = document.createElementNS(SVG, "polyline");
    drawing.append(line);
    cell.replaceChildren(drawing);
  }
  const longest = Math.max(...latencies);
  const points = latencies.length === 1 ? [latencies[0], latencies[0]] : latencies;
  const point = (ms, at) => `${((at / (points.length - 1)) * 94 + 1).toFixed(1)},${(22 - (ms / (longest || 1)) * 20).toFixed(1)}`;
  line.setAttribute("points", points.map(point).join(" "));
  line.parentElement.setAttribute(
    "aria-label",
    `the last ${latencies.length} answers took ${milliseconds(Math.min(...latencies))} to ${milliseconds(longest)}`,
  );
}

function showModel(row, model) {
  const weights = model.resident.map((part) => `${bytes(part.bytes)} on ${part.tier}`).join(", ");
  const texts = [
    model.name,
    model.state,
    weights || "–",
    String(model.queued),
    String(model.answered),
    String(model.switches),
    milliseconds(model.median_ms),
    milliseconds(model.p99_ms),
  ];
  texts.forEach((text, at) => setText(row.cells[at], text));
  if (row.cells[1].className !== model.state) row.cells[1].className = model.state;
  showLatencies(row.cells[8], model.last_ms);
}

function makeModel() {
  const name = element("th");
  name.scope = "row";
  const titles = [...document.querySelectorAll("thead th")].slice(1);
  return element("tr", name, ...titles.map(() => element("td")));
}

function show(snapshot) {
  showFacts(snapshot);
  fill(document.getElementById("tiers"), snapshot.tiers, () => element("p", element("span"), element("meter")), showTier);
  const makeSwitch = () => element("li", element("b"), " ", element("span"), " ", element("small"));
  fill(document.getElementById("switches"), snapshot.switches.slice(0, SWITCHES), makeSwitch, showSwitch);
  fill(document.querySelector("tbody"), snapshot.models, makeModel, showModel);
}

function say(state) {
  setText(link, state);
  link.className = state === "live" ? "live" : "";
}

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// Shows snapshots until the stream ends. If the server asks for a token, it returns once the reader has given one.
async function follow() {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const answer = await fetch("events", { headers: headers(), cache: "no-store", signal: silence.signal });
    if (answer.status === 401) {
      clearTimeout(timer);
      await askForToken();
      return;
    }
    if (!answer.ok) throw new Error(answer.statusText);
    if (!document.getElementById("shown")) {
      await openPage();
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      // Events before the last one are out of date.
      if (events.length > 0) {
        show(JSON.parse(events[events.length - 1].replace(/^data: /, "")));
        say("live");
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

// Loads the page from the server, which shows no details without a token.
async function openPage() {
  const answer = await fetch("./", { headers: headers(), cache: "no-store" });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.querySelector("footer").before(page.getElementById("shown"));
}

async function askForToken() {
  say(sessionStorage.getItem("token") ? "the server does not know this token" : "");
  sessionStorage.removeItem("token");
  document.getElementById("shown")?.remove();
  form.hidden = false;
  secret.focus();
  await new Promise((given) => form.addEventListener("submit", given, { once: true }));
  sessionStorage.setItem("token", secret.value.trim());
  secret.value = "";
  form.hidden = true;
  say("");
}

async function run() {
  form.addEventListener("submit", (submitted) => submitted.preventDefault());
  for (;;) {
    try {
      await follow();
    } catch {
      // The server is or was unreachable; the next attempt shows whether it still is.
    }
    if (link.textContent === "live") say("connecting again");
    if (form.hidden) await sleep(link.textContent === "" ? 0 : RETRY_MS);
  }
}

run();
