// What the page shows and asks: `state`, which its address holds, and `images`, which it does not.
import about from "./api/about" with { type: "json" }; // here, so that the form is ready before anybody can type

export { about };
export const $ = id => document.getElementById(id);
export const scoresTexts = () => about.task === "zero-shot-image-classification"; // it has no predictions, only texts that are typed

export const empty = () => ({
  kind: about.kinds[0], text: "", messages: [["user", ""]], sample: null, question: "", text_pair: "", choices: [], target: null,
  contrast: null, position: null, continuation: [], units: [], span: null, methods: about.methods.attnlrp ? ["attnlrp"] : [],
  picked: null, hide: [], group: "tokens", shared: false, palette: about.palettes[0],
});

export const state = empty();
export const images = []; // as addresses with their data

export function address() {
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
  if (state.picked) put("token", state.picked.positions.join("."));
  return q.toString();
}

export function remember() {
  history.replaceState(null, "", `#${address()}`);
}

export function restored(hash) {
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
  found.picked = q.has("token") ? { positions: numbers(q.get("token"), ".") } : null;
  return found;
}
