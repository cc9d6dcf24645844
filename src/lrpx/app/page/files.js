// Maps as files, and the link to the page.
import { ask, question, tell } from "./ask.js";
import { el } from "./draw.js";
import { $, about, images, remember } from "./state.js";

async function download(format) {
  await ask("download", { question: question(), format }, event => {
    if (event.event !== "file") return;
    const bytes = Uint8Array.from(atob(event.data), letter => letter.charCodeAt(0));
    const url = URL.createObjectURL(new Blob([bytes], { type: event.type }));
    el("a", { href: url, download: event.name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  });
}

export function showFiles() {
  const named = { html: "HTML", png: "PNG", pdf: "PDF", svg: "SVG", latex: "LaTeX", json: "JSON", csv: "CSV" };
  $("files").replaceChildren(el("span", { class: "soft" }, "Download"), ...Object.entries(about.formats).map(([format, missing]) => el("button", {
    type: "button", class: "quiet", disabled: Boolean(missing), title: missing && `needs ${missing}`, "data-format": format, onclick: () => download(format),
  }, named[format])), el("button", { type: "button", class: "quiet", id: "link", onclick: copyLink }, "Copy link"));
}

async function copyLink() {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    tell(images.length ? "The link is copied. It does not hold the images." : "The link is copied.");
  } catch {
    tell("The link is the address of this page: copy it there.");
  }
}
