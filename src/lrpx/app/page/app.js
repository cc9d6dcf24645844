// The page: what can be done on it. Its state is in its address; everything else is an answer of the server.
import { cancel, problem } from "./ask.js";
import { el } from "./draw.js";
import { choose, explain, explainAt, generate, openSample, restoreReply, unanswered } from "./explain.js";
import { showFiles } from "./files.js";
import { message, nameColours, newInput, read, readImages, ready, showKind, write } from "./form.js";
import { nameAllLines } from "./maps.js";
import { forgetChoices, sayTyped, showChoice, typed, typedIfChanged } from "./predictions.js";
import { showReply, wireReply } from "./reply.js";
import { browse, page } from "./samples.js";
import { $, about, address, empty, restored, scoresTexts, state } from "./state.js";

const KINDS = { text: "Text", chat: "Chat", image: "Image", sample: "Benchmark" };
const EXAMPLES = ["The keys to the cabinet", "The capital of France is the city of", "When Mary and John went to the store, John gave a drink to"];

function build() {
  const limit = about.max_tokens === null ? [] : [`up to ${about.max_tokens} tokens`];
  $("model").textContent = [about.model, about.architecture, ...limit, `version ${about.version}`].join(" · ");
  document.title = `lrpx · ${about.model}`;
  $("kinds").append(...about.kinds.map(kind => el("label", {}, el("input", {
    type: "radio", name: "kind", value: kind, onchange: () => { state.kind = kind; newInput(); read(); showKind(); },
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
  $("space-hint").hidden = !about.space_counts;
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
  Object.assign(state, { ...empty(), text, methods: state.methods });
  write();
  explain();
}

function wire() {
  $("ask").addEventListener("submit", event => { event.preventDefault(); if (!$("explain").disabled) explainInput(); });
  $("ask").addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit(); });
  $("go-on").addEventListener("click", generate);
  $("cancel").addEventListener("click", cancel);
  $("add-message").addEventListener("click", () => {
    const last = [...document.querySelectorAll(".message select")].at(-1)?.value;
    const box = message(last === "user" ? "assistant" : "user", "");
    $("messages").append(box);
    box.querySelector("textarea").focus();
  });
  $("images").addEventListener("change", readImages);
  for (const id of ["hide-first", "hide-special", "words", "shared", "palette"]) $(id).addEventListener("change", again);
  $("palette").addEventListener("change", () => { state.palette = $("palette").value; nameColours(); });
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
  for (const id of ["attractors", "predicted", "metric", "order"]) $(id).addEventListener("change", () => browse(0));
  let typing;
  $("find").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(browse, 300, 0); });
  $("previous").addEventListener("click", () => browse(page - 1));
  $("next").addEventListener("click", () => browse(page + 1));
  new ResizeObserver(nameAllLines).observe($("grids"));
  addEventListener("hashchange", restore);
  $("samples").addEventListener("click", event => { const chosen = event.target.closest("button"); if (chosen) openSample(Number(chosen.dataset.sample)); });
  $("inside-body").addEventListener("click", event => { const next = event.target.closest("#explain-next"); if (next) explainAt(Number(next.dataset.position)); });
  wireReply(choose);
}

function explainInput() { // and not what was generated after it: a choice made for that does not hold here
  read();
  if (state.span) {
    Object.assign(state, { span: null, target: null, contrast: null, picked: null });
    forgetChoices();
    showReply();
  }
  typedIfChanged();
  explain();
}

function again() {
  if ($("explain").hidden || $("maps").hidden && !unanswered) return; // nothing was asked
  read();
  typedIfChanged();
  explain();
}

async function restore() {
  if (`#${address()}` === location.hash) return;
  Object.assign(state, restored(location.hash.slice(1)));
  write();
  const has = { text: state.text, chat: state.messages.some(([, text]) => text), sample: state.sample !== null }[state.kind];
  if (!has) return;
  if (state.continuation.length) await restoreReply();
  await explain();
}

async function start() {
  state.text = $("text").value; // what was typed while the page was loading
  build();
  wire();
  write();
  ready(true);
  if (location.hash.length > 1) await restore();
}

start().catch(error => problem(`The page could not start: ${error.message}`));
