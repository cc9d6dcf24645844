// The sentences of a benchmark.
import { ask } from "./ask.js";
import { el } from "./draw.js";
import { $, state } from "./state.js";

export let page = 0;

export async function browse(to = page) {
  page = to;
  const [method, metric] = $("metric").value ? JSON.parse($("metric").value) : [null, null];
  const wanted = { attractors: $("attractors").value === "" ? null : Number($("attractors").value), predicted: $("predicted").value || null,
    method, metric, descending: Boolean($("order").value), text: $("find").value, page };
  await ask("browse", wanted, event => {
    if (event.event !== "samples") return;
    $("found").textContent = `${event.count.toLocaleString("en")} sentences; page ${event.page + 1} of ${event.pages}. The ${event.truth} is underlined.`;
    $("previous").disabled = event.page === 0;
    $("next").disabled = event.page + 1 >= event.pages;
    $("samples").replaceChildren(...event.samples.map(sample => el("li", {}, el("button", {
      type: "button", "aria-pressed": String(sample.id === state.sample), "data-sample": sample.id,
    }, ...sample.pieces.map(([text, role]) => el("span", { class: { subject: "truth", attractor: "attractor" }[role] || "" }, text)),
    el("span", { class: "meta" }, [`${sample.verb}, not ${sample.other}`, sample.attractors !== null && `${sample.attractors} ${sample.attractors === 1 ? "attractor" : "attractors"}`,
      sample.correct !== null && (sample.correct ? "predicted correctly" : "predicted wrongly"),
      sample.score !== null && `${metric} ${sample.score.toFixed(3)}`].filter(Boolean).join(" · "))))));
  });
}
