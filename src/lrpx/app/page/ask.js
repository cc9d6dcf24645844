// Questions to the server. An answer is lines of JSON, each an event; a new question takes the place of the one before.
import { $, images, state } from "./state.js";

export let running = null; // what aborts the question that is being answered
let waits = false; // whether that question waits for others

export function question(methods = state.methods) {
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

export async function ask(name, data, heard) {
  if (running) running.abort();
  const mine = running = new AbortController();
  problem(null);
  busy(true);
  tell("…");
  waits = false;
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
      if (event.event === "waiting") {
        waits = event.ahead > 0;
        tell(waits ? `Waiting: ${event.ahead} ${event.ahead === 1 ? "question is" : "questions are"} before yours.` : "…");
      }
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

export function cancel() {
  if (running) running.abort();
  running = null;
  busy(false);
  tell(waits ? "Cancelled." : "Cancelled. What was being computed is finished first; then the next question begins.");
}

export const tell = text => { $("told").textContent = text; };
export function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text || "";
}
