// What is asked of the model: explanations, generated text, and sentences of a benchmark.
import { ask, problem, question, running, tell } from "./ask.js";
import { newInput, read } from "./form.js";
import { grids, showInside, showMaps } from "./maps.js";
import { showChoice, showPredictions } from "./predictions.js";
import { showReply } from "./reply.js";
import { $, remember, state } from "./state.js";

export let unanswered = false; // whether the last question ended in an error

export async function explain() {
  read();
  remember();
  $("welcome").hidden = true;
  let drew = false, offered = false, failed = false;
  await ask("explain", question(), event => {
    if (event.event === "working") tell(`Explaining by ${event.method} …`);
    if (event.event === "predictions") { offered = true; showPredictions(event, explain); }
    if (event.event === "maps") { drew = true; showMaps(event); }
    if (event.event === "failed" && event.methods.length) { failed = true; problem(failures(event.methods)); }
  });
  if (running) return; // by another question
  if (!drew) $("maps").hidden = $("inside").hidden = true;
  unanswered = !drew && !$("problem").hidden;
  if (!offered) showChoice(failed);
  if (drew && state.picked?.positions.length) await showInside(state.picked, grids[0]?.data.rows[0].method, false);
}

function failures(methods) { // what several methods say alike is said once
  const by = new Map();
  for (const { method, message } of methods) by.set(message, [...(by.get(message) || []), method]);
  return [...by].map(([message, names]) => `${names.join(", ")}: ${message}`).join("\n");
}

export function explainAt(position) {
  Object.assign(state, { position, target: null, contrast: null });
  $("position").value = position;
  explain();
}

export async function generate() {
  read();
  unanswered = false;
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

export async function choose(start, stop) {
  state.span = [start, stop];
  state.target = state.contrast = null;
  state.picked = null;
  showReply();
  await explain();
}

export async function restoreReply() { // the pieces of what was generated are the server's to say
  await ask("reply", question(), event => { if (event.event === "generated") state.units = event.units; });
  showReply();
}

export function openSample(id) {
  state.sample = id;
  newInput();
  $("explain").hidden = false;
  $("samples").querySelectorAll("button").forEach(one => one.setAttribute("aria-pressed", "false"));
  document.activeElement?.setAttribute?.("aria-pressed", "true");
  explain();
}
