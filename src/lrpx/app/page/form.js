// The form: what stands in it is read into the state, and written from there.
import { problem } from "./ask.js";
import { el } from "./draw.js";
import { fillIn, forgetChoices } from "./predictions.js";
import { showReply } from "./reply.js";
import { browse } from "./samples.js";
import { $, about, empty, images, scoresTexts, state } from "./state.js";

export function read() {
  const before = JSON.stringify(input());
  for (const name of ["text", "question", "text_pair"]) state[name] = $(name).value;
  state.choices = $("choices").value.split("\n").map(line => line.trim()).filter(Boolean);
  state.messages = [...document.querySelectorAll(".message")].map(box => [box.querySelector("select").value, box.querySelector("textarea").value]);
  state.methods = [...$("methods").querySelectorAll(":checked")].map(box => box.value);
  state.hide = [...($("hide-first").checked ? ["first"] : []), ...($("hide-special").checked ? ["special"] : [])];
  state.group = $("words").checked ? "words" : "tokens";
  state.shared = $("shared").checked;
  state.palette = $("palette").value;
  if (JSON.stringify(input()) !== before) newInput();
  state.position = position();
}

const position = () => $("position").value === "" ? null : Number($("position").value);

const input = () => [state.kind, state.text, state.question, state.text_pair, state.choices, state.messages, state.sample];

export function newInput() { // what was chosen for another input does not hold for this one
  Object.assign(state, { continuation: [], units: [], span: null, picked: null }, scoresTexts() ? {} : { target: null, contrast: null });
  if (position() === state.position) $("position").value = ""; // or it was typed for this one
  state.position = null;
  forgetChoices();
  showReply();
}

export function write() {
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

export function nameColours() {
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

export function message(role, text) {
  const box = el("div", { class: "message" },
    el("div", { class: "role" }, el("select", { "aria-label": "role" },
      ...["system", "user", "assistant"].map(name => el("option", { selected: name === role }, name))),
    el("button", { type: "button", class: "quiet", "aria-label": "remove this message", onclick: () => { if (document.querySelectorAll(".message").length > 1) box.remove(); } }, "×")),
    el("textarea", { rows: 2, value: text, "aria-label": "message", spellcheck: false }));
  return box;
}

export function showKind() {
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
export async function readImages() {
  const files = [...$("images").files], mine = ++chosenImages;
  ready(false); // or a question that is asked at once would have no images
  try {
    const found = await Promise.all(files.map(asAddress));
    if (mine !== chosenImages) return; // others were chosen since
    images.splice(0, images.length, ...found);
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

export function ready(yes) {
  $("explain").disabled = $("go-on").disabled = !yes;
}
