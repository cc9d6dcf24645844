// The likeliest predictions, and what is explained of them: chosen from the list, or typed.
import { el } from "./draw.js";
import { $, scoresTexts, state } from "./state.js";

const filled = {}; // what each box was filled with

export function showChoice(failed = false) { // what was typed, without predictions: so that it can be corrected
  $("predictions").hidden = !scoresTexts() && !failed && !state.target && !state.contrast;
  $("likely").hidden = true;
  for (const role of ["target", "contrast"]) fillIn(role, state[role]);
}

// A choice: what is sent for it (an id, or first and last token of an answer) and what stands in the box. What is typed is text alone.
const asChoice = token => typeof token.ask === "string" ? { text: token.ask }
  : { ask: token.ask, text: /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(token.text) ? token.name : token.text };

export function fillIn(role, choice) {
  $(role).value = choice?.text ?? "";
  filled[role] = { choice, value: $(role).value };
  sayTyped();
}

const changed = role => $(role).value !== (filled[role]?.value ?? "");

export function typedIfChanged() { // or what was filled in, which may be the likeliest token alone, would be a choice
  if (["target", "contrast"].some(changed)) typed();
}

export function typed() { // a box in which nothing was changed keeps what it was filled with: its text may be that of another token
  for (const role of ["target", "contrast"]) {
    const text = $(role).value;
    if (changed(role)) state[role] = text ? { text } : null;
    else state[role] ??= filled[role]?.choice ?? null;
  }
}

export function sayTyped() { // spaces at the ends of what is typed, and line breaks, which a box does not show
  const marked = text => text.replace(/^ +| +$/g, spaces => "␣".repeat(spaces.length));
  const said = [["target", "explain"], ["contrast", "and not"]].filter(([role]) => /^\s|\s$/.test($(role).value))
    .flatMap(([role, word], n) => [n ? ", " : "", `${word} `, el("code", {}, el("bdi", {}, marked($(role).value)))]);
  $("as-typed").hidden = !said.length;
  $("as-typed").replaceChildren(...(said.length ? ["With the spaces: ", ...said] : []));
}

export function forgetChoices() { // what stands in the boxes is text from now on
  Object.values(filled).forEach(box => { box.choice = null; });
}

export function showPredictions(event, explain) {
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
    el("td", {}, el("button", { type: "button", class: "token", title: `explain ${token.name}`, onclick: pick("target", token) }, el("code", {}, token.name)), token.role ? el("small", {}, ` ${token.role}`) : ""),
    el("td", {}, el("span", { class: "share", "aria-hidden": "true" }, el("i", { style: { width: `${100 * token.p}%` } })), token.shown),
    cell("target", token), cell("contrast", token))));
}
