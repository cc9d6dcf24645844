// Generated tokens: one, or several that follow one another.
import { el, focusIn, roving } from "./draw.js";
import { $, state } from "./state.js";

let anchor = null; // where marking several began

export function showReply() {
  const reply = $("reply"), span = state.span;
  if (!state.units.length) anchor = null;
  $("generated").hidden = !state.units.length;
  reply.replaceChildren(...state.units.map(([start, stop, text], n) => el("button", {
    type: "button", "aria-pressed": String(Boolean(span) && start < span[1] && stop > span[0]), "data-n": n,
  }, text.replaceAll("\n", "↵\n") || "·")));
  roving(reply, "button", (from, to, extend) => {
    if (!extend) anchor = null;
    else if (anchor === null) anchor = from;
    if (extend) mark(to, true);
  });
  const at = span && reply.querySelector("[aria-pressed=true]");
  if (at) reply.querySelectorAll("button").forEach(one => { one.tabIndex = one === at ? 0 : -1; });
}

function mark(n, extend) {
  if (!extend || anchor === null) anchor = n;
  const from = Math.min(anchor, n), to = Math.max(anchor, n);
  state.span = [state.units[from][0], state.units[to][1]];
  $("reply").querySelectorAll("button").forEach((one, i) => one.setAttribute("aria-pressed", String(i >= from && i <= to)));
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
  addEventListener("pointerup", () => { if (dragging) { dragging = false; choose(...state.span); } });
  reply.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    const n = place(event);
    const marked = state.span && state.units[n][0] >= state.span[0] && state.units[n][1] <= state.span[1];
    if (!marked || !event.shiftKey && (anchor === null || anchor === n)) mark(n, false);
    choose(...state.span).then(() => { const again = reply.querySelector(`[data-n="${n}"]`); if (again) focusIn(reply, "button", again); });
  });
}
