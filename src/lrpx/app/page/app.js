// The state of the page is in its address; everything else is an answer of the server.
import about from "./api/about" with { type: "json" }; // here, so that the form is ready before anybody can type
import { el, focusIn, grid, header, inside, legend, nameLines, pictures, roving } from "./draw.js";

const $ = id => document.getElementById(id);
const KINDS = { text: "Text", chat: "Chat", image: "Image", sample: "Benchmark" };
const EXAMPLES = ["The keys to the cabinet", "The capital of France is the city of", "When Mary and John went to the store, John gave a drink to"];
let state, running = null, grids = [], picked = null, images = [], anchor = null, page = 0, filled = {};

const empty = () => ({
  kind: about.kinds[0], text: "", messages: [["user", ""]], sample: null, question: "", text_pair: "", choices: [], target: null,
  contrast: null, position: null, continuation: [], units: [], span: null, methods: about.methods.attnlrp ? ["attnlrp"] : [],
  hide: [], group: "tokens", shared: false, palette: about.palettes[0],
});

// Address

function address() {
  const q = new URLSearchParams();
  const put = (name, value) => { if (value !== null && value !== "" && value !== undefined) q.append(name, value); };
  put("kind", state.kind);
  if (state.kind === "text") ["text", "question", "text_pair"].forEach(name => put(name, state[name]));
  if (state.kind === "text") state.choices.forEach(one => put("choice", one));
  if (state.kind === "chat") put("messages", JSON.stringify(state.messages));
  if (state.kind === "sample") put("sample", state.sample);
  for (const role of ["target", "contrast"]) {
    const asked = state[role]?.ask;
    put(asked === undefined ? role : `${role}_id`, asked === undefined ? state[role]?.text : [asked].flat().join("-"));
  }
  put("position", state.position);
  if (state.continuation.length) put("continuation", state.continuation.join("."));
  if (state.span) put("span", state.span.join("-"));
  state.methods.forEach(name => put("method", name));
  state.hide.forEach(name => put("hide", name));
  if (state.group === "words") put("group", "words");
  if (state.shared) put("scale", "shared");
  if (state.palette !== about.palettes[0]) put("colours", state.palette);
  if (picked) put("token", picked.positions.join("."));
  return q.toString();
}

function remember() {
  history.replaceState(null, "", `#${address()}`);
}

function restored(hash) {
  const q = new URLSearchParams(hash), found = empty(), number = text => text === null || !/^-?\d+$/.test(text) ? null : Number(text);
  const numbers = (text, mark) => (text || "").split(mark).map(number).filter(n => n !== null);
  if (about.kinds.includes(q.get("kind"))) found.kind = q.get("kind");
  for (const name of ["text", "question", "text_pair"]) found[name] = q.get(name) || "";
  found.choices = q.getAll("choice");
  try {
    const messages = JSON.parse(q.get("messages") || "null");
    if (Array.isArray(messages) && messages.every(m => Array.isArray(m) && m.length === 2 && m.every(part => typeof part === "string"))) found.messages = messages;
  } catch { /* an address that was cut */ }
  found.sample = number(q.get("sample"));
  for (const role of ["target", "contrast"]) {
    const id = number(q.get(`${role}_id`)), answer = numbers(q.get(`${role}_id`), "-");
    const ask = id ?? (answer.length === 2 ? answer : null);
    found[role] = ask !== null ? { ask, text: `#${q.get(`${role}_id`)}` } : q.get(role) ? { text: q.get(role) } : null;
  }
  found.position = about.by_position ? number(q.get("position")) : null;
  found.continuation = numbers(q.get("continuation"), ".");
  const span = numbers(q.get("span"), "-");
  found.span = span.length === 2 ? span : null;
  if (q.has("method")) found.methods = q.getAll("method").filter(name => name in about.methods);
  found.hide = q.getAll("hide").filter(name => ["first", "special"].includes(name));
  found.group = q.get("group") === "words" ? "words" : "tokens";
  found.shared = q.get("scale") === "shared";
  if (about.palettes.includes(q.get("colours"))) found.palette = q.get("colours");
  picked = q.has("token") ? { positions: numbers(q.get("token"), ".") } : null;
  return found;
}

// Questions

function question(methods = state.methods) {
  const asked = { kind: state.kind, methods, hide: state.hide, group: state.group, shared_scale: state.shared, palette: state.palette };
  if (state.kind === "text") {
    asked.text = state.text;
    for (const name of ["question", "text_pair"]) if (state[name]) asked[name] = state[name];
    if (state.choices.length) asked.choices = state.choices;
  }
  if (state.kind === "chat") asked.messages = state.messages.map(([role, content]) => ({ role, content }));
  if (state.kind === "sample") asked.sample = state.sample;
  if (images.length && state.kind !== "sample") asked.images = images;
  for (const role of ["target", "contrast"]) if (state[role]) asked[role] = state[role].ask ?? state[role].text;
  if (state.position !== null) asked.position = state.position;
  if (state.continuation.length) asked.continuation = state.continuation;
  if (state.span) asked.span = state.span;
  return asked;
}

async function ask(name, data, heard) {
  if (running) running.abort();
  const mine = running = new AbortController();
  problem(null);
  busy(true);
  tell("…");
  let last = {};
  try {
    const answer = await fetch(`api/${name}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data), signal: mine.signal,
    });
    if (!answer.ok) {
      const said = await answer.json().catch(() => ({}));
      throw new Error(said.error || `the app answered ${answer.status}`);
    }
    for await (const event of lines(answer.body)) {
      if (mine !== running) return false;
      last = event;
      if (event.event === "waiting") tell(`Waiting: ${event.ahead} ${event.ahead === 1 ? "question is" : "questions are"} before yours.`);
      else if (event.event === "error") problem(event.message);
      else if (event.event !== "end") heard(event);
    }
    if (!["end", "error"].includes(last.event)) problem("The connection broke. Is the app still running?");
  } catch (error) {
    if (mine.signal.aborted) return false;
    problem(error instanceof TypeError ? "The app does not answer. Is it still running?" : error.message);
  }
  if (mine === running) {
    running = null;
    busy(false);
    tell("");
  }
  return last.event === "end";
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

function busy(yes) {
  $("cancel").hidden = !yes;
  $("results").setAttribute("aria-busy", yes);
}
const tell = text => { $("told").textContent = text; };
function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text || "";
}

async function explain() {
  read();
  remember();
  $("welcome").hidden = true;
  let drew = false, offered = false, failed = false;
  await ask("explain", question(), event => {
    if (event.event === "working") tell(`Explaining by ${event.method} …`);
    if (event.event === "predictions") { offered = true; showPredictions(event); }
    if (event.event === "maps") { drew = true; showMaps(event); }
    if (event.event === "failed" && event.methods.length) { failed = true; problem(failures(event.methods)); }
  });
  if (running) return; // by another question
  if (!drew) $("maps").hidden = $("inside").hidden = true;
  if (!offered) showChoice(failed);
  if (drew && picked?.positions.length) await showInside(picked, grids[0]?.data.rows[0].method, false);
}

function failures(methods) { // what several methods say alike is said once
  const by = new Map();
  for (const { method, message } of methods) by.set(message, [...(by.get(message) || []), method]);
  return [...by].map(([message, names]) => `${names.join(", ")}: ${message}`).join("\n");
}

async function generate() {
  read();
  Object.assign(state, { continuation: [], units: [], span: null });
  remember();
  $("welcome").hidden = true;
  const asked = question();
  for (const name of ["target", "contrast", "position"]) delete asked[name];
  await ask("generate", { question: asked, count: Number($("count").value) }, event => {
    state.continuation = event.ids;
    state.units = event.units;
  });
  showReply();
  if (state.units.length) { await choose(state.units[0][0], state.units[0][1]); }
}

// Generated tokens: one, or several that follow one another

async function choose(start, stop) {
  state.span = [start, stop];
  state.target = state.contrast = null;
  picked = null;
  showReply();
  await explain();
}

function showReply() {
  const reply = $("reply"), span = state.span;
  $("generated").hidden = !state.units.length;
  reply.replaceChildren(...state.units.map(([start, stop, text], n) => el("button", {
    type: "button", "aria-pressed": String(Boolean(span) && start < span[1] && stop > span[0]), "data-n": n,
  }, text.replaceAll("\n", "↵\n") || "·")));
  roving(reply, "button", (to, extend) => { if (extend) mark(to, true); });
  const at = span && reply.querySelector("[aria-pressed=true]");
  if (at) reply.querySelectorAll("button").forEach(one => { one.tabIndex = one === at ? 0 : -1; });
}

function mark(n, extend) {
  if (!extend || anchor === null) anchor = n;
  const from = Math.min(anchor, n), to = Math.max(anchor, n);
  state.span = [state.units[from][0], state.units[to][1]];
  $("reply").querySelectorAll("button").forEach((one, i) => one.setAttribute("aria-pressed", String(i >= from && i <= to)));
}

function wireReply() {
  const reply = $("reply"), place = event => { const b = event.target.closest("button"); return b ? Number(b.dataset.n) : -1; };
  let dragging = false;
  reply.addEventListener("pointerdown", event => {
    const n = place(event);
    if (n < 0 || event.button) return;
    dragging = true;
    mark(n, event.shiftKey);
  });
  reply.addEventListener("pointerover", event => { const n = place(event); if (dragging && n >= 0) mark(n, true); });
  addEventListener("pointerup", () => { if (dragging) { dragging = false; choose(...state.span); } });
  reply.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    const n = place(event);
    const marked = state.span && state.units[n][0] >= state.span[0] && state.units[n][1] <= state.span[1];
    if (!marked || !event.shiftKey && anchor === n) mark(n, false);
    choose(...state.span).then(() => { const again = reply.querySelector(`[data-n="${n}"]`); if (again) focusIn(reply, "button", again); });
  });
}

// Predictions

const scoresTexts = () => about.task === "zero-shot-image-classification"; // it has no predictions, only texts that are typed

function showChoice(failed = false) { // what was typed, without predictions: so that it can be corrected
  $("predictions").hidden = !scoresTexts() && !failed && !state.target && !state.contrast;
  $("likely").hidden = true;
  for (const role of ["target", "contrast"]) fillIn(role, state[role]);
}

// A choice: what is sent for it (an id, or first and last token of an answer) and what stands in the box. What is typed is text alone.
const asChoice = token => typeof token.ask === "string" ? { text: token.ask }
  : { ask: token.ask, text: /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(token.text) ? token.name : token.text };

function fillIn(role, choice) {
  $(role).value = choice?.text ?? "";
  filled[role] = { choice, value: $(role).value };
  sayTyped();
}

function typed() { // a box in which nothing was changed keeps what it was filled with: its text may be that of another token
  for (const role of ["target", "contrast"]) {
    const text = $(role).value;
    if (text !== (filled[role]?.value ?? "")) state[role] = text ? { text } : null;
    else state[role] ??= filled[role]?.choice ?? null;
  }
}

function sayTyped() { // spaces at the ends of what is typed, and line breaks, which a box does not show
  const marked = text => text.replace(/^ +| +$/g, spaces => "␣".repeat(spaces.length));
  const said = [["target", "explain"], ["contrast", "and not"]].filter(([role]) => /^\s|\s$/.test($(role).value))
    .flatMap(([role, word], n) => [n ? ", " : "", `${word} `, el("code", {}, el("bdi", {}, marked($(role).value)))]);
  $("as-typed").hidden = !said.length;
  $("as-typed").replaceChildren(...(said.length ? ["With the spaces: ", ...said] : []));
}

function showPredictions(event) {
  $("predictions").hidden = $("likely").hidden = false;
  const chosen = {}, key = choice => JSON.stringify(choice?.ask ?? choice?.text ?? null);
  for (const role of ["target", "contrast"]) {
    chosen[role] = key(event[role] ?? state[role]);
    if (event.target) fillIn(role, event[role] && asChoice(event[role]));
    if (event[role] && state[role]?.ask !== undefined) state[role] = asChoice(event[role]);
  }
  const body = $("likely").tBodies[0];
  const pick = (role, token) => () => { state[role] = asChoice(token); if (role === "target" && key(state.contrast) === key(token)) state.contrast = null; explain(); };
  const cell = (role, token) => el("td", {}, el("input", {
    type: "radio", name: role, value: key(token), checked: chosen[role] === key(token), disabled: role === "contrast" && chosen.target === key(token),
    "aria-label": role === "target" ? `explain ${token.name}` : `and not ${token.name}`, onchange: pick(role, token),
  }));
  body.replaceChildren(...event.tokens.map(token => el("tr", { class: [chosen.target, chosen.contrast].includes(key(token)) ? "chosen" : "" },
    el("td", {}, el("button", { type: "button", class: "token", title: `explain ${token.name}`, onclick: pick("target", token) }, el("code", {}, token.name))),
    el("td", {}, el("span", { class: "share", "aria-hidden": "true" }, el("i", { style: { width: `${100 * token.p}%` } })), token.shown),
    cell("target", token), cell("contrast", token))));
}

// Maps

function showMaps(event) {
  $("maps").hidden = false;
  grids = event.grids.map(data => ({ data, box: grid(data, event.truth, (column, button) => pickToken(column, button, data)) }));
  $("grids").replaceChildren(...grids.flatMap(({ data, box }) => [header(data), ...pictures(data, column => pickToken(column, null, data)), box, legend(data)]));
  grids.forEach(({ data, box }) => nameLines(box, data));
  $("inside").hidden = true;
  pressed();
}

function pressed() {
  const of = new Set(picked ? picked.positions : []);
  for (const { data, box } of grids) {
    box.querySelectorAll(".column").forEach((button, n) => button.setAttribute("aria-pressed", String(data.columns[n].positions.some(i => of.has(i)))));
  }
  $("grids").querySelectorAll(".patch").forEach(button => button.setAttribute("aria-pressed", String(of.has(Number(button.dataset.token)))));
}

async function pickToken(column, button, data) {
  picked = { positions: column.positions };
  pressed();
  remember();
  await showInside(picked, data.rows[0].method, false);
}

async function showInside(token, method, all) {
  const methods = grids.flatMap(({ data }) => data.rows.map(row => row.method));
  const positions = all ? [] : token.positions;
  await ask("inside", { question: question([method]), positions }, event => {
    if (event.event !== "inside") return;
    const chooser = el("select", { "aria-label": "method", onchange: change => showInside(token, change.target.value, all) },
      ...methods.map(name => el("option", { selected: name === method }, name)));
    const where = el("select", { "aria-label": "tokens", onchange: change => showInside(token, method, change.target.value === "all") },
      el("option", { value: "one", selected: !all }, "this token"), el("option", { value: "all", selected: all }, "all tokens"));
    const place = positions.length > 1 ? `positions ${positions[0]} to ${positions.at(-1)}` : `position ${positions[0]}`;
    const text = event.text.length > 80 ? `${event.text.slice(0, 79)}…` : event.text;
    const title = all ? "all tokens" : `“${text}” · ${place}`;
    const here = about.task === "causal" && !all && state.kind !== "sample" && !state.span && !images.length
      ? el("button", { type: "button", class: "quiet", onclick: () => explainAt(token.positions.at(-1)) }, "Explain the prediction after this token") : null;
    $("inside-body").replaceChildren(el("p", {}, el("bdi", {}, title), ` · relevance ${event.relevance}`),
      el("p", { class: "buttons" }, el("span", {}, chooser), el("span", {}, where), here), ...inside(event));
    $("inside").hidden = false;
  });
}

function explainAt(position) {
  Object.assign(state, { position, target: null, contrast: null });
  $("position").value = position;
  explain();
}

// Files

async function download(format) {
  await ask("download", { question: question(), format }, event => {
    if (event.event !== "file") return;
    const bytes = Uint8Array.from(atob(event.data), letter => letter.charCodeAt(0));
    const url = URL.createObjectURL(new Blob([bytes], { type: event.type }));
    el("a", { href: url, download: event.name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  });
}

function showFiles() {
  const named = { html: "HTML", png: "PNG", pdf: "PDF", svg: "SVG", latex: "LaTeX", json: "JSON", csv: "CSV" };
  $("files").replaceChildren(el("span", { class: "soft" }, "Download"), ...Object.entries(about.formats).map(([format, missing]) => el("button", {
    type: "button", class: "quiet", disabled: Boolean(missing), title: missing && `needs ${missing}`, "data-format": format, onclick: () => download(format),
  }, named[format])), el("button", { type: "button", class: "quiet", id: "link", onclick: copyLink }, "Copy link"));
}

async function copyLink() {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    tell(images.length ? "The link is copied. It does not hold the images." : "The link is copied.");
  } catch {
    tell("The link is the address of this page: copy it there.");
  }
}

// Form

function read() {
  const before = JSON.stringify(input());
  for (const name of ["text", "question", "text_pair"]) state[name] = $(name).value;
  state.choices = $("choices").value.split("\n").map(line => line.trim()).filter(Boolean);
  state.messages = [...document.querySelectorAll(".message")].map(box => [box.querySelector("select").value, box.querySelector("textarea").value]);
  state.methods = [...$("methods").querySelectorAll(":checked")].map(box => box.value);
  state.hide = [...($("hide-first").checked ? ["first"] : []), ...($("hide-special").checked ? ["special"] : [])];
  state.group = $("words").checked ? "words" : "tokens";
  state.shared = $("shared").checked;
  state.palette = $("palette").value;
  state.position = $("position").value === "" ? null : Number($("position").value);
  if (JSON.stringify(input()) !== before) newInput();
}

const input = () => [state.kind, state.text, state.question, state.text_pair, state.choices, state.messages, state.sample];

function newInput() { // what was chosen for another input does not hold for this one
  Object.assign(state, { continuation: [], units: [], span: null }, scoresTexts() ? {} : { target: null, contrast: null });
  picked = anchor = null;
  Object.values(filled).forEach(box => { box.choice = null; });
  showReply();
}

function write() {
  for (const name of ["text", "question", "text_pair"]) $(name).value = state[name];
  $("choices").value = state.choices.join("\n");
  $("messages").replaceChildren(...state.messages.map(([role, text]) => message(role, text)));
  $("methods").querySelectorAll("input").forEach(box => { box.checked = state.methods.includes(box.value); });
  $("hide-first").checked = state.hide.includes("first");
  $("hide-special").checked = state.hide.includes("special");
  $("words").checked = state.group === "words";
  $("shared").checked = state.shared;
  $("palette").value = state.palette;
  nameColours();
  $("position").value = state.position ?? "";
  for (const role of ["target", "contrast"]) fillIn(role, state[role]);
  $("kinds").querySelectorAll("input").forEach(radio => { radio.checked = radio.value === state.kind; });
  showKind();
}

function nameColours() {
  [$("raised").textContent, $("lowered").textContent] = state.palette.split(" and ");
}

function offer() { // the methods that can explain such an input; why others cannot
  const given = state.kind === "image" || images.length && state.kind !== "sample" ? "images" : "text", reasons = new Map();
  const boxes = [...$("methods").querySelectorAll("input")], ticked = boxes.some(box => box.checked);
  for (const box of boxes) {
    const why = about.cannot[given][box.value];
    box.closest("label").hidden = Boolean(why);
    if (why) { box.checked = false; reasons.set(why, [...(reasons.get(why) || []), box.value]); }
  }
  if (ticked && !boxes.some(box => box.checked)) boxes.forEach(box => { box.checked = empty().methods.includes(box.value); });
  state.methods = boxes.filter(box => box.checked).map(box => box.value);
  const count = [...reasons.values()].flat().length;
  $("left-out").hidden = !count;
  $("left-out").querySelector("summary").textContent = `${count} ${count === 1 ? "method cannot" : "methods cannot"} explain this`;
  $("left-out").querySelector("ul").replaceChildren(...[...reasons].map(([why, names]) => el("li", {}, el("b", {}, names.join(", ")), `: ${why}`)));
}

function message(role, text) {
  const box = el("div", { class: "message" },
    el("div", { class: "role" }, el("select", { "aria-label": "role" },
      ...["system", "user", "assistant"].map(name => el("option", { selected: name === role }, name))),
    el("button", { type: "button", class: "quiet", "aria-label": "remove this message", onclick: () => { if (document.querySelectorAll(".message").length > 1) box.remove(); } }, "×")),
    el("textarea", { rows: 2, value: text, "aria-label": "message", spellcheck: false }));
  return box;
}

function showKind() {
  document.querySelectorAll("[data-kind]").forEach(part => { part.hidden = part.dataset.kind !== state.kind; });
  $("pictures").hidden = !about.reads_images || state.kind === "sample";
  $("generation").hidden = !about.generates || state.kind === "sample" || state.kind === "image";
  $("by-position").hidden = !about.by_position || state.kind === "sample";
  offer();
  $("explain").hidden = state.kind === "sample" && state.sample === null;
  if ($("explain").hidden) $("predictions").hidden = $("maps").hidden = $("inside").hidden = true; // those of another input
  if (state.kind === "sample") browse();
}

let chosenImages = 0;
async function readImages() {
  const files = [...$("images").files], mine = ++chosenImages;
  ready(false); // or a question that is asked at once would have no images
  try {
    const found = await Promise.all(files.map(asAddress));
    if (mine !== chosenImages) return; // others were chosen since
    images = found;
    newInput();
    offer();
    $("thumbnails").replaceChildren(...images.map((src, i) => el("img", { src, alt: files[i].name })));
  } catch (error) {
    problem(`The image cannot be read: ${error.message}`);
  }
  if (mine === chosenImages) ready(true);
}

const asAddress = file => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(file);
});

function ready(yes) {
  $("explain").disabled = $("go-on").disabled = !yes;
}

// Benchmark

async function browse() {
  const [method, metric] = $("metric").value ? JSON.parse($("metric").value) : [null, null];
  const wanted = { attractors: $("attractors").value === "" ? null : Number($("attractors").value), predicted: $("predicted").value || null,
    method, metric, descending: Boolean($("order").value), text: $("find").value, page };
  await ask("browse", wanted, event => {
    if (event.event !== "samples") return;
    $("found").textContent = `${event.count.toLocaleString("en")} sentences; page ${event.page + 1} of ${event.pages}. The ${event.truth} is underlined.`;
    $("previous").disabled = event.page === 0;
    $("next").disabled = event.page + 1 >= event.pages;
    $("samples").replaceChildren(...event.samples.map(sample => el("li", {}, el("button", {
      type: "button", "aria-pressed": String(sample.id === state.sample), onclick: () => open(sample.id),
    }, ...sample.pieces.map(([text, role]) => el("span", { class: { subject: "truth", attractor: "attractor" }[role] || "" }, text)),
    el("span", { class: "meta" }, [`${sample.verb}, not ${sample.other}`, sample.attractors !== null && `${sample.attractors} ${sample.attractors === 1 ? "attractor" : "attractors"}`,
      sample.correct !== null && (sample.correct ? "predicted correctly" : "predicted wrongly"),
      sample.score !== null && `${metric} ${sample.score.toFixed(3)}`].filter(Boolean).join(" · "))))));
  });
}

function open(id) {
  state.sample = id;
  newInput();
  $("explain").hidden = false;
  $("samples").querySelectorAll("button").forEach(one => one.setAttribute("aria-pressed", "false"));
  document.activeElement?.setAttribute?.("aria-pressed", "true");
  explain();
}

// Start

function build() {
  const limit = about.max_tokens === null ? [] : [`up to ${about.max_tokens} tokens`];
  $("model").textContent = [about.model, about.architecture, ...limit, `version ${about.version}`].join(" · ");
  document.title = `lrpx · ${about.model}`;
  $("kinds").append(...about.kinds.map(kind => el("label", {}, el("input", {
    type: "radio", name: "kind", value: kind, onchange: () => { read(); state.kind = kind; newInput(); showKind(); },
  }), KINDS[kind])));
  $("kinds").hidden = about.kinds.length < 2;
  $("palette").replaceChildren(...about.palettes.map(name => el("option", {}, name)));
  $("position").placeholder = { masked: "the mask", "token-classification": "the most certain entity" }[about.task] || "the last token";
  $("of-tokens").hidden = about.task === "image-classification";
  $("methods").append(el("div", { class: "ticks" }, ...Object.entries(about.methods).map(([name, summary]) => el("label", { class: "tick", title: summary },
    el("input", { type: "checkbox", value: name }), name))));
  document.querySelectorAll("[data-task]").forEach(part => { part.hidden = part.dataset.task !== about.task; });
  if (about.task === "masked") $("text").placeholder = `The keys to the cabinet ${about.mask} here.`;
  $("count").max = about.max_new_tokens;
  $("count").value = Math.min($("count").value, about.max_new_tokens);
  $("examples").replaceChildren(...(about.task === "causal" ? EXAMPLES : []).map(text => el("button", { type: "button", class: "quiet",
    onclick: () => example(text) }, text)));
  $("space-hint").hidden = !["causal", "masked"].includes(about.task);
  if (about.kinds[0] === "image") {
    $("start-hint").textContent = "Choose an image";
    $("images-label").textContent = "Image";
    $("images").multiple = false;
  }
  if (scoresTexts()) {
    $("start-hint").textContent = "Choose an image, type a text that may describe it";
    $("target").placeholder = "a photo of a cat";
    $("contrast").placeholder = "a photo of a dog";
    $("likely").hidden = true;
    $("predictions").classList.add("texts");
    $("predictions-title").textContent = "Texts";
    showChoice();
  }
  if (about.benchmark) {
    const scores = about.benchmark.methods.flatMap(method => about.benchmark.metrics.map(metric => [method, metric]));
    $("metric").replaceChildren(el("option", { value: "" }, "order of the source"), ...scores.map(pair => el("option", { value: JSON.stringify(pair) }, pair.join(" "))));
    $("by-score").hidden = !scores.length;
    $("predicted").disabled = !about.benchmark.records;
    $("no-records").hidden = about.benchmark.records;
  }
  showFiles();
}

function example(text) {
  read();
  state = { ...empty(), text, methods: state.methods };
  write();
  explain();
}

function wire() {
  $("ask").addEventListener("submit", event => { event.preventDefault(); if ($("explain").disabled) return; read(); state.span = null; if (scoresTexts()) typed(); explain(); });
  $("ask").addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit(); });
  $("go-on").addEventListener("click", generate);
  $("cancel").addEventListener("click", () => { if (running) running.abort(); running = null; busy(false); tell("Cancelled."); });
  $("add-message").addEventListener("click", () => {
    const last = [...document.querySelectorAll(".message select")].at(-1)?.value;
    const box = message(last === "user" ? "assistant" : "user", "");
    $("messages").append(box);
    box.querySelector("textarea").focus();
  });
  $("images").addEventListener("change", readImages);
  for (const id of ["hide-first", "hide-special", "words", "shared", "palette"]) $(id).addEventListener("change", again);
  $("palette").addEventListener("change", () => { read(); nameColours(); });
  $("methods").addEventListener("change", again);
  $("choose").addEventListener("click", () => { read(); typed(); explain(); });
  for (const role of ["target", "contrast"]) $(role).addEventListener("keydown", event => { if (event.key === "Enter") $("choose").click(); });
  for (const role of ["target", "contrast"]) $(role).addEventListener("input", sayTyped);
  $("swap").addEventListener("click", () => {
    typed();
    const { target, contrast } = state;
    if (!contrast) { problem("There is nothing to swap with: choose a token in the column “and not” first."); return; }
    Object.assign(state, { target: contrast, contrast: target });
    explain();
  });
  $("clear").addEventListener("click", () => { state.target = state.contrast = null; explain(); });
  for (const id of ["attractors", "predicted", "metric", "order"]) $(id).addEventListener("change", () => { page = 0; browse(); });
  let typing;
  $("find").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { page = 0; browse(); }, 300); });
  $("previous").addEventListener("click", () => { page -= 1; browse(); });
  $("next").addEventListener("click", () => { page += 1; browse(); });
  new ResizeObserver(() => grids.forEach(({ data, box }) => nameLines(box, data))).observe($("grids"));
  addEventListener("hashchange", restore);
  wireReply();
}

function again() { if (!$("maps").hidden) explain(); }

async function restore() {
  if (`#${address()}` === location.hash) return;
  state = restored(location.hash.slice(1));
  write();
  const has = { text: state.text, chat: state.messages.some(([, text]) => text), sample: state.sample !== null }[state.kind];
  if (!has) return;
  if (state.continuation.length) await restoreReply();
  await explain();
}

async function restoreReply() { // the pieces of what was generated are the server's to say
  await ask("reply", question(), event => { if (event.event === "generated") state.units = event.units; });
  showReply();
}

async function start() {
  state = { ...empty(), text: $("text").value }; // what was typed while the page was loading
  build();
  wire();
  write();
  ready(true);
  if (location.hash.length > 1) await restore();
}

start().catch(error => problem(`The page could not start: ${error.message}`));
