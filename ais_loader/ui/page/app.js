// The page of `ais-loader ui`. Whatever comes from the store is inserted as text, never as markup.
"use strict";

const SECONDS = 60;
const WAVE_BYTES = 32 * 1024 * 1024;
const rates = [];
let lastCounts = new Map();
let shown = 0;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  let unit = -1;
  do { bytes /= 1024; unit += 1; } while (bytes >= 1024 && unit < 4);
  return `${bytes >= 100 ? bytes.toFixed(0) : bytes.toFixed(1)} ${["KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

const count = (number) => number.toLocaleString("en-US");
const objects = (number) => `${count(number)} object${number === 1 ? "" : "s"}`;
const time = (seconds) => new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
const hash = (values) => `#${query(values)}`;
const contentUrl = (one) => `content?${query({ bucket: one.bucket, name: one.name, member: one.member })}`;

async function ask(path, values = {}) {
  const answer = await fetch(`api/${path}?${query(values)}`);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error || answer.statusText);
  return told;
}

function rows(heads, body) {
  const head = make("tr", {}, ...heads.map(([text, kind]) => make("th", { class: kind, scope: "col" }, text)));
  const lines = body.map(({ cells, chosen }) =>
    make("tr", { class: chosen ? "chosen" : null }, ...cells.map((cell, at) => make("td", { class: heads[at][1] }, cell))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines));
}

function failed(error) {
  return make("p", { class: "bad", role: "alert" }, error.message);
}

// -- where we are

function place() {
  const values = new URLSearchParams(location.hash.slice(1));
  return { bucket: values.get("bucket"), prefix: values.get("prefix") || "", name: values.get("name"), member: values.get("member") };
}

function showPath(at) {
  const parts = [make("a", { href: "#" }, "buckets")];
  if (at.bucket) {
    parts.push(make("a", { href: hash({ bucket: at.bucket }) }, at.bucket));
    let so = "";
    for (const folder of at.prefix.split("/").slice(0, -1)) {
      so += `${folder}/`;
      parts.push(make("a", { href: hash({ bucket: at.bucket, prefix: so }) }, folder));
    }
  }
  const nodes = parts.flatMap((part, index) => (index ? [make("span", { class: "sep" }, "/"), part] : [part]));
  document.getElementById("path").replaceChildren(...nodes);
}

async function show() {
  const turn = ++shown;
  const at = place();
  const list = document.getElementById("list");
  const detail = document.getElementById("detail");
  showPath(at);
  document.querySelector("main").classList.toggle("alone", !at.name);
  try {
    const found = at.bucket ? await folderList(at) : await bucketList(turn);
    if (turn === shown) list.replaceChildren(...found);
  } catch (error) {
    if (turn === shown) list.replaceChildren(failed(error));
  }
  if (!at.name) { detail.replaceChildren(); return; }
  try {
    const told = await ask("object", { bucket: at.bucket, name: at.name, member: at.member });
    if (turn === shown) detail.replaceChildren(...preview(told, at));
  } catch (error) {
    if (turn === shown) detail.replaceChildren(make("h2", {}, at.member || at.name), failed(error));
  }
}

async function bucketList(turn) {
  const told = await ask("buckets");
  if (!told.buckets.length) return [make("p", { class: "quiet" }, "No buckets yet.")];
  const lines = told.buckets.map((one) => ({ ...one, objectsCell: make("span", { class: "quiet" }, "…"), sizeCell: make("span") }));
  const total = make("p", { class: "quiet" }, "counting objects …");
  countBuckets(lines, total, turn);
  return [total, rows([["bucket"], ["objects", "number"], ["size", "number"], ["copies", "number"]], lines.map((one) => ({
    cells: [make("a", { href: hash({ bucket: one.name }) }, one.name), one.objectsCell, one.sizeCell, count(one.copies)],
  })))];
}

// One bucket after another, as counting a large one takes a while. Ends when another place is shown.
async function countBuckets(lines, total, turn) {
  let all = 0, bytes = 0, counted = 0;
  for (const one of lines) {
    if (turn !== shown) return;
    try {
      const sum = await ask("sum", { bucket: one.name });
      one.objectsCell.replaceWith(make("span", {}, count(sum.objects) + (sum.complete ? "" : " or more")));
      one.sizeCell.textContent = size(sum.size_bytes);
      all += sum.objects;
      bytes += sum.size_bytes;
      counted += sum.complete;
    } catch (error) {
      one.objectsCell.replaceWith(make("span", { class: "bad", title: error.message }, "not counted"));
    }
  }
  const buckets = `${count(lines.length)} bucket${lines.length === 1 ? "" : "s"}`;
  const more = counted === lines.length ? "" : "; some nodes or drives do not answer, so there may be more";
  total.textContent = `${buckets}, ${objects(all)}, ${size(bytes)}${more}`;
}

async function folderList(at) {
  const told = await ask("folder", { bucket: at.bucket, prefix: at.prefix });
  const above = at.prefix.slice(0, at.prefix.lastIndexOf("/") + 1);
  const body = told.folders.map((one) => ({
    cells: [make("a", { href: hash({ bucket: at.bucket, prefix: one.name }) }, one.name.slice(above.length)),
      size(one.size_bytes), objects(one.objects)],
  }));
  for (const one of told.listed) {
    body.push({
      chosen: one.name === at.name,
      cells: [make("a", { href: hash({ bucket: at.bucket, prefix: at.prefix, name: one.name }) }, one.name.slice(above.length)),
        size(one.size_bytes), time(one.modified_s)],
    });
  }
  const input = make("input", { name: "prefix", value: at.prefix, "aria-label": "Beginning of names", placeholder: "beginning of names", spellcheck: "false" });
  const form = make("form", {}, input);
  form.addEventListener("submit", (event) => { event.preventDefault(); location.hash = hash({ bucket: at.bucket, prefix: input.value }); });
  const sum = `${objects(told.objects)}, ${size(told.size_bytes)}` + (told.complete ? "" : "; nodes are silent, there may be more");
  const left = told.own - told.listed.length;
  return [form, make("p", { class: "quiet" }, sum), rows([["name"], ["size", "number"], ["objects or time stored", "number"]], body),
    left > 0 ? make("p", { class: "quiet" }, `and ${count(left)} more here: type the beginning of their names`) : null].filter(Boolean);
}

// -- previews

function preview(told, at) {
  const facts = [["size", size(told.size_bytes) + (told.size_bytes < 1024 ? "" : ` (${count(told.size_bytes)} bytes)`)]];
  if (told.modified_s) facts.push(["stored", time(told.modified_s)]);
  if (told.checksum) facts.push(["CRC-32C", told.checksum]);
  facts.push(["version", told.version]);
  for (const [name, value] of Object.entries(told.metadata || {})) facts.push([name, value]);
  const parts = [make("h2", {}, told.member || told.name)];
  if (told.member) parts.push(make("p", {}, make("a", { href: hash({ bucket: at.bucket, prefix: at.prefix, name: at.name }) }, `in ${told.name}`)));
  parts.push(make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
  const source = contentUrl(told);
  if (told.kind === "image") {
    const picture = make("img", { src: source, alt: told.member || told.name });
    picture.addEventListener("error", () => picture.replaceWith(make("p", { class: "bad" }, "This browser cannot show it as a picture.")));
    parts.push(picture);
  }
  if (told.kind === "audio") {
    const canvas = make("canvas", { "aria-label": "Waveform", width: 1000, height: 220 });
    parts.push(canvas, make("audio", { src: source, controls: "", preload: "metadata" }));
    if (told.size_bytes <= WAVE_BYTES) drawWave(canvas, source);
  }
  if (told.table) parts.push(make("div", { class: "scroll" }, rows(told.table.columns.map((name) => [name]), told.table.rows.map((cells) => ({ cells: told.table.columns.map((_, column) => cells[column] ?? "") })))));
  if (told.table && told.table.more) parts.push(make("p", { class: "quiet" }, "The first rows."));
  if (told.text !== undefined) parts.push(make("pre", {}, told.text));
  if (told.more) parts.push(make("p", { class: "quiet" }, "The beginning."));
  if (told.problem) parts.push(make("p", { class: "bad" }, told.problem));
  if (told.members) {
    parts.push(make("div", { class: "scroll" }, rows([["member"], ["size", "number"]], told.members.map((one) => ({
      cells: [make("a", { href: hash({ bucket: at.bucket, prefix: at.prefix, name: at.name, member: one.name }) }, one.name), size(one.size_bytes)],
    })))));
    if (told.more_members) parts.push(make("p", { class: "quiet" }, "The first members."));
  }
  parts.push(make("p", {}, make("a", { href: source, download: (told.member || told.name).split("/").pop() }, "Download")));
  return parts;
}

async function drawWave(canvas, source) {
  const ink = canvas.getContext("2d");
  try {
    const bytes = await (await fetch(source)).arrayBuffer();
    const sound = await new OfflineAudioContext(1, 1, 44100).decodeAudioData(bytes);
    const samples = sound.getChannelData(0);
    const middle = canvas.height / 2;
    ink.fillStyle = getComputedStyle(document.body).getPropertyValue("--accent");
    for (let column = 0; column < canvas.width; column += 1) {
      const first = Math.floor((column * samples.length) / canvas.width);
      const last = Math.max(first + 1, Math.floor(((column + 1) * samples.length) / canvas.width));
      let low = 0, high = 0;
      for (let at = first; at < last && at < samples.length; at += 1) {
        low = Math.min(low, samples[at]);
        high = Math.max(high, samples[at]);
      }
      ink.fillRect(column, middle - high * middle, 1, Math.max(1, (high - low) * middle));
    }
    canvas.dataset.drawn = `${sound.duration.toFixed(2)} s`;
  } catch (error) {
    canvas.replaceWith(make("p", { class: "quiet" }, `No waveform: ${error.message}`));
  }
}

// -- nodes, drives, batches per second

async function watch() {
  const section = document.getElementById("activity");
  try {
    const told = await ask("activity");
    document.getElementById("store").textContent = told.url;
    let batches = 0, bytes = 0, over = 0;
    const counts = new Map();
    for (const node of told.nodes) {
      if (node.batches === undefined) continue;
      counts.set(node.name, { at: told.at_s, batches: node.batches, bytes: node.entry_bytes });
      const last = lastCounts.get(node.name);
      if (last && node.batches >= last.batches && told.at_s > last.at) {
        over = told.at_s - last.at;
        node.rate = (node.batches - last.batches) / over;
        node.byteRate = (node.entry_bytes - last.bytes) / over;
        batches += node.rate;
        bytes += node.byteRate;
      }
    }
    lastCounts = counts;
    if (over) rates.push({ batches, bytes });
    rates.splice(0, rates.length - SECONDS);
    section.replaceChildren(...activity(told, batches, bytes));
    if (!told.embedded) drawRates();
  } catch (error) {
    section.replaceChildren(make("h2", {}, "Nodes"), failed(error));
  }
  setTimeout(watch, document.hidden ? 5000 : 1000);
}

function activity(told, batches, bytes) {
  const parts = [];
  if (told.embedded) {
    parts.push(make("h2", {}, "Drives"), make("p", { class: "quiet" }, "An embedded store: batches run in the processes that use it, and are not counted here."));
  } else {
    parts.push(make("h2", {}, told.nodes.length === 1 ? "The node" : `${told.nodes.length} nodes`));
    const chart = (id, name, value) => make("div", {}, make("strong", {}, value), make("span", { class: "quiet" }, ` ${name}`), make("span", { class: "quiet most", id: `${id}-most` }), make("canvas", { id, width: 800, height: 180, "aria-label": name }));
    parts.push(make("div", { class: "charts" }, chart("batches", "batches a second", batches >= 10 ? count(Math.round(batches)) : batches.toFixed(1)), chart("bytes", "a second delivered", size(Math.round(bytes)))));
    parts.push(rows([["node"], ["batches/s", "number"], ["bytes/s", "number"], ["active", "number"], ["sessions", "number"]], told.nodes.map((node) => ({
      cells: node.error ? [make("span", {}, node.name, make("br"), make("span", { class: "bad" }, node.error)), "", "", "", ""] :
        [node.name, node.rate === undefined ? "–" : node.rate.toFixed(1), node.byteRate === undefined ? "–" : size(Math.round(node.byteRate)), count(node.active_batches), count(node.open_sessions)],
    }))));
  }
  const drives = told.nodes.flatMap((node) => node.drives.map((drive) => ({ node, drive })));
  parts.push(rows([["drive"], ["state"], ["free", "number"], ["of", "number"]], drives.map(({ drive }) => ({
    cells: [drive.path, drive.state === "ok" ? "ok" : make("span", { class: "bad" }, drive.state), size(drive.free_bytes), size(drive.size_bytes)],
  }))));
  return parts;
}

function drawRates() {
  for (const id of ["batches", "bytes"]) {
    const canvas = document.getElementById(id);
    const ink = canvas.getContext("2d");
    const most = Math.max(0, ...rates.map((one) => one[id]));
    const step = canvas.width / SECONDS;
    if (!most) {
      document.getElementById(`${id}-most`).textContent = "none in the last minute";
      continue;
    }
    document.getElementById(`${id}-most`).textContent = `up to ${id === "bytes" ? size(Math.round(most)) : most.toFixed(1)} in the last minute`;
    ink.fillStyle = getComputedStyle(document.body).getPropertyValue("--accent");
    rates.forEach((one, at) => {
      const height = (one[id] / most) * (canvas.height - 4);
      ink.fillRect((SECONDS - rates.length + at) * step, canvas.height - height, step - 2, height);
    });
  }
}

window.addEventListener("hashchange", show);
show();
watch();
