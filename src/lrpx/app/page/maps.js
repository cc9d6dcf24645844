// Maps of the text, and what layers and heads gave to a token of them.
import { ask, question } from "./ask.js";
import { el, grid, header, inside, legend, nameLines, pictures } from "./draw.js";
import { $, about, images, remember, state } from "./state.js";

export let grids = []; // what is drawn, and where

export function showMaps(event) {
  $("maps").hidden = false;
  grids = event.grids.map(data => ({ data, box: grid(data, event.truth, (column, button) => pickToken(column, button, data)) }));
  $("grids").replaceChildren(...grids.flatMap(({ data, box }) => [header(data), ...pictures(data, column => pickToken(column, null, data)), box, legend(data)]));
  grids.forEach(({ data, box }) => nameLines(box, data));
  $("inside").hidden = true;
  pressed();
}

function pressed() {
  const of = new Set(state.picked ? state.picked.positions : []);
  for (const { data, box } of grids) {
    box.querySelectorAll(".column").forEach((button, n) => button.setAttribute("aria-pressed", String(data.columns[n].positions.some(i => of.has(i)))));
  }
  $("grids").querySelectorAll(".patch").forEach(button => button.setAttribute("aria-pressed", String(of.has(Number(button.dataset.token)))));
}

async function pickToken(column, button, data) {
  state.picked = { positions: column.positions };
  pressed();
  remember();
  await showInside(state.picked, data.rows[0].method, false);
}

export async function showInside(token, method, all) {
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
      ? el("button", { type: "button", class: "quiet", id: "explain-next", "data-position": token.positions.at(-1) }, "Explain the prediction after this token") : null;
    $("inside-body").replaceChildren(el("p", {}, el("bdi", {}, title), ` · relevance ${event.relevance}`),
      el("p", { class: "buttons" }, el("span", {}, chooser), el("span", {}, where), here), ...inside(event));
    $("inside").hidden = false;
  });
}

export function nameAllLines() {
  grids.forEach(({ data, box }) => nameLines(box, data));
}
