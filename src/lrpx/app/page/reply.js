// Generated tokens: one, or several that follow one another.
import { el, focusIn, roving } from "./draw.js";
import { $, state } from "./state.js";

let anchor = null; // where marking several began
let marked = null; // what is marked and not explained yet, as a span of tokens

export function showReply() {
  const reply = $("reply"), span = state.span;
  if (!state.units.length) anchor = null;
  marked = null;
  $("generated").hidden = !state.units.length;
  reply.replaceChildren(...state.units.map(([start, stop, text], n) => el("button", {
    type: "button", "data-n": n,
  }, text.replaceAll("\n", "↵\n") || "·")));
  press(span);
  roving(reply, "button", (from, to, extend) => {
    if (!extend) { unmark(); return; }
    if (anchor === null) anchor = from;
    mark(to, true);
    $("marked").hidden = false;
  });
  const at = span && reply.querySelector("[aria-pressed=true]");
  if (at) reply.querySelectorAll("button").forEach(one => { one.tabIndex = one === at ? 0 : -1; });
}

function mark(n, extend) {
  if (!extend || anchor === null) anchor = n;
  const from = Math.min(anchor, n), to = Math.max(anchor, n);
  marked = [state.units[from][0], state.units[to][1]];
  press(marked);
}

function unmark() {
  anchor = marked = null;
  press(state.span);
}

function press(span) {
  $("marked").hidden = true;
  $("reply").querySelectorAll("button").forEach((one, i) => {
    const [start, stop] = state.units[i];
    one.setAttribute("aria-pressed", String(Boolean(span) && start < span[1] && stop > span[0]));
  });
}

export function wireReply(choose) {
  const reply = $("reply"), place = event => { const b = event.target.closest("button"); return b ? Number(b.dataset.n) : -1; };
  let dragging = false;
  reply.addEventListener("pointerdown", event => {
    const n = place(event);
    if (n < 0 || event.button) return;
    dragging = true;
    mark(n, event.shiftKey);
  });
  reply.addEventListener("pointerover", event => { const n = place(event); if (dragging && n >= 0) mark(n, true); });
  addEventListener("pointerup", () => { if (dragging) { dragging = false; choose(...marked); } });
  addEventListener("pointercancel", () => { if (dragging) { dragging = false; unmark(); } });
  reply.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    const n = place(event);
    if (!marked) mark(n, false);
    choose(...marked).then(() => { const again = reply.querySelector(`[data-n="${n}"]`); if (again) focusIn(reply, "button", again); });
  });
}
