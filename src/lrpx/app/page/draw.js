// What the server computed -> elements. Text is set as text, never as HTML.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

const paint = ([background, color]) => ({ background, color });

// Buttons in a group of which one is reached by Tab, the others by the arrow keys; `across` of them make a row.
export function roving(group, selector, moved, across = 1) {
  const all = () => [...group.querySelectorAll(selector)];
  const first = all()[0];
  all().forEach(button => { button.tabIndex = button === first ? 0 : -1; });
  group.onkeydown = event => {
    const buttons = all(), here = buttons.indexOf(event.target.closest(selector));
    if (here < 0) return;
    const flip = getComputedStyle(group).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: flip, ArrowLeft: -flip, ArrowDown: across, ArrowUp: -across }[event.key];
    const to = step ? here + step : { Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    focusIn(group, selector, buttons[to]);
    if (moved) moved(here, to, event.shiftKey);
  };
}

export function focusIn(group, selector, button) {
  group.querySelectorAll(selector).forEach(one => { one.tabIndex = one === button ? 0 : -1; });
  button.focus();
}

// A grid: a column per token, below it a coloured number per method. Columns wrap; the names of the rows stand at each line.
export function grid(data, truth, pick) {
  const several = data.rows.length > 1;
  const box = el("div", { class: "grid", dir: data.rtl ? "rtl" : "ltr", role: "group", "aria-label": "contributions of the tokens" });
  const marked = new Set(truth), numbers = data.columns.length <= 80, runs = [box]; // of text in the other direction, within each other
  data.columns.forEach((column, n) => {
    const turns = n > 0 && column.level !== data.columns[n - 1].level; // then a space stands between the runs, not in one of them
    runs.length = Math.min(runs.length, column.level + 1);
    if (turns && column.gap) runs.at(-1).append(el("span", { class: "space" }));
    while (runs.length <= column.level) {
      const run = el("span", { dir: runs.at(-1).dir === "rtl" ? "ltr" : "rtl" });
      runs.at(-1).append(run);
      runs.push(run);
    }
    const line = runs.at(-1);
    if (column.breaks) line.append(el("span", { class: "break" }));
    if (column.segment) line.append(el("bdi", { class: "segment" }, `${column.segment}:`));
    const text = column.pieces.join(""), underlined = column.positions.some(i => marked.has(i));
    const told = data.rows.map(row => `${several ? row.method + " " : ""}${row.numbers[n] || "hidden"}`).join(", ");
    // A space is the margin of the column before it, so that it does not indent a line.
    const next = data.columns[n + 1], gap = next && next.gap && next.level === column.level;
    const classes = ["column", gap && "gap", column.explained && "explained", column.hidden && "hidden", underlined && "truth",
      column.image && "image"].filter(Boolean).join(" ");
    const more = [underlined && "ground truth", column.explained && "explained position"].filter(Boolean).join(", ");
    const button = el("button", {
      type: "button", class: classes, title: [...column.tokens, told].join("\n"),
      "aria-label": `${text}: ${told}${more ? ", " + more : ""}`, "aria-pressed": "false",
    });
    const alone = !several && { style: paint(data.rows[0].colours[n]) };
    button.append(el("bdi", { class: "piece", dir: column.rtl ? "rtl" : "ltr", ...alone }, text));
    for (const row of data.rows) {
      if (!several) button.append(el("span", { class: "value plain", dir: "ltr" }, numbers ? row.numbers[n] : ""));
      else button.append(el("span", { class: "value", dir: "ltr", style: paint(row.colours[n]) }, numbers ? row.numbers[n] : ""));
    }
    button.addEventListener("click", () => {
      focusIn(box, ".column", button);
      pick(column, button);
    });
    line.append(button);
    if (column.pieces.length > 1 && n + 1 < data.columns.length) line.append(el("span", { class: "break" }));
  });
  roving(box, ".column");
  return box;
}

// The names of the rows, left of each line of a grid. Called when the grid is on the page, and when its width changes.
export function nameLines(box, data) {
  box.querySelectorAll(".names").forEach(old => old.remove());
  if (data.rows.length < 2) return;
  const longest = Math.max(...data.rows.map(row => row.method.length));
  const gutter = Math.min(longest * 7 + 12, box.clientWidth * 0.3);
  box.style.paddingLeft = `${gutter}px`;
  const lines = new Map();
  for (const column of box.querySelectorAll(".column")) if (!lines.has(column.offsetTop)) lines.set(column.offsetTop, column);
  for (const column of lines.values()) {
    const names = el("div", { class: "names", dir: "ltr", "aria-hidden": "true", style: { top: "0", width: `${gutter - 8}px` } });
    const cells = column.querySelectorAll(".value");
    data.rows.forEach((row, i) => {
      names.append(el("span", {
        title: row.method,
        style: { position: "absolute", left: "0", width: "100%", top: `${cells[i].offsetTop}px`,
          lineHeight: `${cells[i].offsetHeight}px` },
      }, row.method));
    });
    box.append(names);
  }
}

// What stands around a grid: what is explained above it; below it for each method its scale, and notes on all.
export function header(data) {
  return el("div", { class: "header" }, el("bdi", { class: "what" }, data.what));
}

export function legend(data) {
  const [first, ...rest] = data.below;
  const remarks = rest.filter(line => line.includes("note: ")), others = rest.filter(line => !line.includes("note: "));
  return el("div", { class: "rows" }, ...data.rows.map(row => el("div", { class: "row" }, el("span", { class: "name" }, row.method),
    row.scale ? bar(row) : el("span", { class: "soft" }, "every relevance is 0"),
    data.what ? null : el("bdi", { class: "what" }, row.what),
    el("span", { class: "soft" }, row.sums.join(" · ")),
    ...row.legend.map(line => el("span", { class: "soft" }, line)))),
  el("div", { class: "soft lines" }, first ? el("p", {}, first) : null, ...remarks.map(line => el("p", {}, line)),
    el("details", {}, el("summary", {}, "more"), ...others.map(line => el("p", {}, line)), el("p", {}, `frame: ${data.marked}`))));
}

function bar(row) {
  return el("div", { class: "bar" }, el("div", { "aria-hidden": "true" }, ...row.bar.map(([background]) => el("i", { style: { background } }))),
    el("span", {}, ...row.ticks.map(tick => el("span", {}, tick))));
}

// Images: the picture in pale grey, below its patches.
export function pictures(data, pick) {
  return data.rows.flatMap(row => row.images.map(image => {
    const patches = el("div", { class: "patches", style: {
      gridTemplate: `repeat(${image.rows},1fr) / repeat(${image.columns},1fr)` } });
    image.colours.forEach((background, i) => {
      const told = `row ${Math.floor(i / image.columns) + 1}, column ${i % image.columns + 1}: ${image.numbers[i]}`;
      const patch = el("button", { type: "button", class: "patch", style: { background }, title: told, "aria-label": told, "aria-pressed": "false",
        "data-token": image.tokens[i], onclick: () => { focusIn(patches, ".patch", patch); pick({ positions: [image.tokens[i]] }, patch); } });
      patches.append(patch);
    });
    roving(patches, ".patch", null, image.columns);
    const width = Math.min(420, 420 * image.width / image.height);
    return el("figure", { class: "picture" }, el("figcaption", {}, `${row.method} · ${image.caption}`),
      el("div", { class: "overlay", role: "group", "aria-label": `${row.method}: ${image.caption}`,
        style: { width: `${width}px`, aspectRatio: `${image.width} / ${image.height}` } },
      el("img", { src: image.file, alt: "" }), patches));
  }));
}

// Relevance of layers and heads at some tokens.
export function inside(data) {
  const parts = [];
  if (data.layers) {
    const { names, numbers, colours } = data.layers;
    parts.push(el("p", { class: "soft" }, `What each layer's parts gave, in logits; the colours end at ±${data.layers.largest}.`));
    parts.push(table(numbers, colours, names, "layer", "Relevance of layers"));
  }
  if (data.heads) {
    parts.push(el("p", { class: "soft" },
      `Heads: a row per layer, the first on top, and a column per head; the colours end at ±${data.heads.largest}. ` +
      `Numbers are ${data.where}.`));
    parts.push(table(data.heads.numbers, data.heads.colours, data.heads.names, "head", "Relevance of heads"));
  }
  if (!parts.length) parts.push(el("p", {}, `${data.method} has no numbers for layers and heads here.`));
  return parts;
}

function table(numbers, colours, names, what, caption) {
  const small = numbers[0].length > 16;
  return el("div", { class: "inside", tabindex: "0", role: "group", "aria-label": caption }, el("table", { class: small ? "small" : "" },
    el("caption", { class: "read" }, caption),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, what === "head" ? "layer ↓ head →" : "layer →"),
      ...numbers[0].map((_, i) => el("th", { scope: "col" }, small && i % 4 ? "" : String(i))))),
    el("tbody", {}, ...numbers.map((row, y) => el("tr", {}, el("th", { scope: "row" }, names[y]),
      ...row.map((number, x) => el("td", { style: paint(colours[y][x]), title: `${what === "head" ? `layer ${names[y]}, head ${x}` : `${names[y]}, layer ${x}`}: ${number}` },
        small ? el("span", { class: "read" }, number) : number)))))));
}
