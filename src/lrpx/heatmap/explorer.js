// Colours a text by a method, a layer or a head that is chosen, and shows layers and heads of a token. explorer.py says how
// the numbers are stored. Text is only ever set as text, never as HTML.
(() => {
const root = document.currentScript.closest("section"), D = JSON.parse(root.querySelector(".data").textContent);
const make = (tag, name, text) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};
const S = { text: 0, row: 0, pick: null, token: -1, view: D.start === "layers" ? "layers" : "heads", part: 0,
            palette: Object.keys(D.palettes)[0] };
const row = () => D.texts[S.text].rows[S.row];
let N = null;  // numbers of the row: {largest, sums, steps, cells}
let redraw = 0;

// Numbers.
async function unpack(data, cells) {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer(), count = buffer.byteLength / (8 + cells);
  return { largest: new Float32Array(buffer, 0, count), sums: new Float32Array(buffer, 4 * count, count),
           steps: new Int8Array(buffer, 8 * count), cells };
}
const at = (vector, cell) => {
  const step = N.steps[vector * N.cells + cell] / 127;
  return N.largest[vector] * Math.sign(step) * step * step;
};
// A pick is {layer, column}: columns are the parts of a layer, then its heads.
const vectorOf = ({ layer, column }) => {
  const { parts, layers, heads } = row();
  return column < parts.length ? column * layers + layer : parts.length * layers + layer * heads + column - parts.length;
};
const columns = () => row().parts.length + row().heads;
const nameOf = ({ layer, column }) => {
  const part = row().parts[column];
  if (part === undefined) return `head ${column - row().parts.length} of layer ${layer}`;
  return part === "all" ? `all that layer ${layer} adds` : `${part} of layer ${layer}`;
};
const end = values => {
  const sizes = values.map(Math.abs).sort((a, b) => a - b);
  if (!sizes.length) return 0;
  const most = sizes[sizes.length - 1], high = sizes[Math.ceil(D.quantile * (sizes.length - 1))];
  return high > 0 && D.lead * high < most ? high : most;
};
// What MatrixView.legend says.
const ofScale = (values, scale) => {
  if (!scale) return "every relevance is 0";
  const beyond = beyondScale(values, scale, 3);
  return `colours to ±${signed(scale, 3).slice(1)}` + (beyond && `; darkest: beyond it, ${beyond}`);
};
const beyondScale = (values, scale, digits) => {
  const beyond = values.filter(v => Math.abs(v) > scale);
  if (!beyond.length) return "";
  const low = Math.min(...beyond), high = Math.max(...beyond), count = `${beyond.length} of ${values.length}`;
  if (low < 0 && high > 0) return `${count}, ${signed(low, digits)} to ${signed(high, digits)}`;
  return `${count}, up to ${signed(high < 0 ? low : high, digits)}`;
};
const signed = (v, digits) => v ? ((v > 0 ? "+" : "") + String(Number(v.toPrecision(digits)))).replace("-", D.minus) : "0";

// Colours.
const mix = share => {
  const [high, zero, low, above, below] = D.palettes[S.palette];
  if (Math.abs(share) > 1) return share > 0 ? above : below;
  return zero.map((w, i) => Math.round(w + ((share > 0 ? high : low)[i] - w) * Math.abs(share)));
};
const ink = rgb => {
  const [r, g, b] = rgb.map(x => x / 255).map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
  return (.2126 * r + .7152 * g + .0722 * b + .05) ** 2 > .05 * 1.05 ? "#000" : "#fff";
};
const hex = rgb => "#" + rgb.map(x => x.toString(16).padStart(2, "0")).join("");

// The parts of the page.
const choices = root.appendChild(make("div", "choices"));
const chooser = (name, options, chosen) => {
  const label = make("label", "", name + " "), select = label.appendChild(make("select"));
  options.forEach((option, i) => { const o = make("option", "", option); o.value = i; select.append(o); });
  select.addEventListener("change", () => chosen(+select.value));
  choices.append(label);
  return select;
};
const button = (text, pressed) => {
  const b = choices.appendChild(make("button", "", text));
  b.type = "button";
  b.addEventListener("click", pressed);
  return b;
};
if (D.texts.length > 1) chooser("text", D.texts.map(t => t.title), i => { S.text = i; S.row = 0; start(); });
const methods = chooser("method", [], i => { S.row = i; start(); });
const views = { heads: button("layers × heads", () => { S.view = "heads"; draw(); }),
                layers: button("tokens × layers", () => { S.view = "layers"; draw(); }) };
const partOf = chooser("of", [], i => { S.part = i; S.pick = null; draw(); });
const reset = button("whole model", () => { S.pick = null; S.token = -1; draw(); });
const palette = chooser("colours", Object.keys(D.palettes), i => { S.palette = Object.keys(D.palettes)[i]; recolour(); draw(); });
const what = root.appendChild(make("p", "soft"));
const told = root.appendChild(make("p", "told"));
told.setAttribute("role", "status");
const map = root.appendChild(make("p", "map explore-map"));
map.setAttribute("role", "group");
map.setAttribute("aria-label", "text");
const legend = root.appendChild(make("div", "legend soft"));
const bar = legend.appendChild(make("div", "bar")), scaleOfMap = legend.appendChild(make("span"));
bar.append(make("div"), make("span"));
bar.firstChild.append(make("i"));
const board = root.appendChild(make("div", "board")), plane = make("div", "plane"), marker = make("div", "at");
const hint = root.appendChild(make("p", "soft"));
plane.tabIndex = 0;
plane.setAttribute("role", "application");
let canvas = null;
const rounding = make("p", "soft", "Numbers marked ≈ are rounded: within 0.8 % of the largest in their layer or head.");
root.append(rounding);

// Drawing.
function start() {
  const chosen = ++redraw, current = row();
  Object.assign(S, { pick: null, token: -1, part: 0 });
  methods.replaceChildren(...D.texts[S.text].rows.map((r, i) => {
    const o = make("option", "", r.label);
    o.value = i;
    return o;
  }));
  methods.value = S.row;
  N = null;
  cells();
  if (!current.data) { draw(); return; }
  unpack(current.data, current.cells.length).then(numbers => { if (chosen === redraw) { N = numbers; draw(); } })
    .catch(error => { told.textContent = `This browser cannot unpack the numbers (${error}). The maps below need no script.`; });
}

function cells() {
  const { cells, rtl } = row();
  map.dir = rtl ? "rtl" : "ltr";
  map.replaceChildren();
  cells.forEach((cell, i) => {
    if (cell.b) map.append(make("br"));
    if (cell.g) map.append(" ");
    const first = cell.g || cell.b || !i || cells[i - 1].t.includes("\n");
    const next = cells[i + 1], last = !next || next.g || next.b || cell.t.includes("\n");
    const span = map.appendChild(make("span", "cell"));
    span.classList.toggle("left", Boolean(cell.r ? last : first));
    span.classList.toggle("right", Boolean(cell.r ? first : last));
    span.classList.toggle("explained", Boolean(cell.x));
    const lines = cell.t.split("\n");
    lines.forEach((line, k) => {
      if (k && line) span.append(make("br"));
      span.append(line);
    });
    if (lines.length > 1 && !lines[lines.length - 1]) map.append(make("br"));
    span.setAttribute("role", "button");
    span.tabIndex = i ? -1 : 0;
    span.dataset.cell = i;
  });
}
const spans = () => [...map.querySelectorAll(".cell")];
const nameOfToken = i => `"${row().cells[i].t.replaceAll("\n", "")}" (position ${row().cells[i].p})`;

function draw() {
  const current = row(), inside = Boolean(N);
  what.textContent = current.what;
  views.heads.setAttribute("aria-pressed", S.view === "heads");
  views.layers.setAttribute("aria-pressed", S.view === "layers");
  const columnsOfView = current.parts.concat(Array.from({ length: current.heads }, (_, h) => `head ${h}`));
  partOf.replaceChildren(...columnsOfView.map((name, i) => { const o = make("option", "", name); o.value = i; return o; }));
  partOf.value = S.part;
  partOf.parentNode.hidden = S.view !== "layers";
  views.heads.hidden = views.layers.hidden = board.hidden = !inside;
  reset.disabled = !S.pick && S.token < 0;
  drawMap();
  if (inside) S.view === "heads" ? drawHeads() : drawLayers();
  else if (!current.data) hint.textContent = current.missing;
  rounding.hidden = !inside;
  tell();
}

function valuesOfMap() {
  const current = row();
  return S.pick ? current.total.map((_, i) => at(vectorOf(S.pick), i)) : current.total;
}

function drawMap() {
  const current = row(), values = valuesOfMap(), shown = values.filter((_, i) => !current.cells[i].h), scale = D.end !== null && !S.pick ? D.end : end(shown);
  spans().forEach((span, i) => {
    const hidden = current.cells[i].h, rgb = hidden ? [224, 226, 230] : mix(scale ? values[i] / scale : 0);
    span.style.background = hex(rgb);
    span.style.color = ink(rgb);
    span.classList.toggle("chosen", i === S.token);
    span.setAttribute("aria-pressed", i === S.token);
    span.title = `position ${current.cells[i].p}   ${S.pick ? "≈ " : ""}${signed(values[i], S.pick ? 3 : 4)}`;
  });
  const low = current.oneSided && !S.pick;
  bar.className = low ? "bar one-sided" : "bar";
  bar.lastChild.replaceChildren(...(low ? [] : [make("span", "", signed(-scale, 4))]), make("span", "", "0"),
                                make("span", "", signed(scale, 4)));
  const beyond = beyondScale(shown, scale, S.pick ? 3 : 4);
  scaleOfMap.textContent = beyond && `darkest: beyond the scale (${beyond})`;
}

function plot(height, width, value, wide, high, colour) {
  canvas = make("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let r = 0; r < height; r++) for (let c = 0; c < width; c++) {
    image.data.set([...colour(value(r, c), c), 255], 4 * (r * width + c));
  }
  context.putImageData(image, 0, 0);
  board.style.setProperty("--wide", `${wide}px`);
  board.style.setProperty("--high", `${high}px`);
  plane.style.width = `${wide * width}px`;
  plane.style.height = `${high * height}px`;
  plane.replaceChildren(canvas, marker);
}

function frame(corner, top, side) {
  const { scrollTop, scrollLeft } = board, focused = document.activeElement === plane;  // before it is moved
  const inner = make("div"), left = make("div", "side");
  const above = make("div", "top");
  inner.append(make("div", "side", corner), above, left, plane);
  above.append(...top.map(text => make("span", "", text)));
  left.append(...side.map(([text, on]) => make("span", on ? "on" : "", text)));
  board.replaceChildren(inner);
  Object.assign(board, { scrollTop, scrollLeft });
  if (focused) plane.focus({ preventScroll: true });
}

function mark(r, c, wide, high) {
  marker.hidden = r === null;
  if (r === null) return;
  marker.style.left = `${c * wide}px`;
  marker.style.top = `${r * high}px`;
}

function drawHeads() {
  const { layers, parts, heads } = row(), count = columns(), wide = roomFor(count), high = 17;
  const value = (layer, column) => {
    const vector = vectorOf({ layer, column });
    return S.token < 0 ? N.sums[vector] : at(vector, S.token);
  };
  const all = (from, to) => {
    const found = [];
    for (let l = 0; l < layers; l++) for (let c = from; c < to; c++) found.push(value(l, c));
    return found;
  };
  const groups = [all(0, parts.length), all(parts.length, count)], scales = groups.map(end), scaleOf = c => scales[c < parts.length ? 0 : 1];
  plot(layers, count, value, wide, high, (v, c) => mix(scaleOf(c) ? v / scaleOf(c) : 0));
  const top = Array.from({ length: count }, (_, c) => c < parts.length ? ["A", "B", "C"][c] : (c - parts.length) % 5 ? "" : c - parts.length);
  frame("layer", top, Array.from({ length: layers }, (_, l) => [String(l), S.pick?.layer === l]));
  mark(S.pick ? S.pick.layer : null, S.pick?.column, wide, high);
  const of = S.token < 0 ? "summed over all tokens" : `of ${nameOfToken(S.token)}`;
  const named = parts.map((part, i) => `${["A", "B", "C"][i]}: ${part === "all" ? "all that the layer adds" : part}`).join(", ");
  hint.textContent = [`Layers × heads, ${of}.`, named && `${named} (${ofScale(groups[0], scales[0])}).`,
    heads && `0 to ${heads - 1}: heads (${ofScale(groups[1], scales[1])}).`,
    "Click a field, or move with the arrow keys, to see its tokens above; click a token to see its layers and heads. Escape: all."]
    .filter(Boolean).join(" ");
  plane.setAttribute("aria-label", `layers by heads, ${of}; arrow keys move, Escape leaves`);
}

function drawLayers() {
  const { layers, cells } = row(), wide = roomFor(layers + 3), high = 20;
  const value = (i, layer) => at(vectorOf({ layer, column: S.part }), i);
  const all = [], shown = [];  // hidden cells are drawn, but do not set the scale
  cells.forEach((cell, i) => { for (let l = 0; l < layers; l++) { all.push(value(i, l)); if (!cell.h) shown.push(value(i, l)); } });
  const scale = end(shown);
  plot(cells.length, layers, value, wide, high, v => mix(scale ? v / scale : 0));
  frame("token", Array.from({ length: layers }, (_, l) => l % 5 ? "" : l),
        cells.map((cell, i) => [cell.t.replaceAll("\n", ""), i === S.token]));
  const picked = S.pick && S.pick.column === S.part && S.token >= 0;
  mark(picked ? S.token : null, S.pick?.layer, wide, high);
  hint.textContent = `Tokens × layers, ${row().where} (${ofScale(all, scale)}). Click a field, or move with the ` +
    "arrow keys, to see that layer above. Escape: all.";
  plane.setAttribute("aria-label", "tokens by layers; arrow keys move, Escape leaves");
}

function tell() {
  const current = row(), words = [];
  if (S.pick) words.push(`${nameOf(S.pick)}: ${signed(N.sums[vectorOf(S.pick)], 4)} in all, ${current.where}`);
  else words.push(`${current.label}, the whole model`);
  if (S.token >= 0) words.push(`${nameOfToken(S.token)}: ` + (S.pick ? "≈ " + signed(at(vectorOf(S.pick), S.token), 3)
                                                                    : signed(current.total[S.token], 4)));
  told.textContent = words.join(" · ");
}

// What people do.
const roomFor = count => Math.max(7, Math.min(26, Math.floor((root.clientWidth - 130) / count)));
addEventListener("resize", () => { if (N) draw(); });
const within = (v, count) => Math.max(0, Math.min(count - 1, v));
function choose(r, c) {
  const { layers, cells } = row();
  if (S.view === "heads") S.pick = { layer: within(r, layers), column: within(c, columns()) };
  else { S.pick = { layer: within(c, layers), column: S.part }; S.token = within(r, cells.length); }
  draw();
  marker.scrollIntoView({ block: "nearest", inline: "nearest" });
}
plane.addEventListener("click", event => {
  const box = plane.getBoundingClientRect();
  choose(Math.floor((event.clientY - box.top) / box.height * canvas.height),
         Math.floor((event.clientX - box.left) / box.width * canvas.width));
});
const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
plane.addEventListener("keydown", event => {
  const here = !S.pick ? null : S.view === "heads" ? [S.pick.layer, S.pick.column] : [S.token, S.pick.layer];
  if (steps[event.key]) here && here[0] >= 0 ? choose(here[0] + steps[event.key][0], here[1] + steps[event.key][1]) : choose(0, 0);
  else if (event.key === "Escape") { S.pick = null; S.token = -1; draw(); }
  else return;
  event.preventDefault();
});
map.addEventListener("click", event => {
  const span = event.target.closest(".cell");
  if (!span) return;
  const i = +span.dataset.cell;
  S.token = S.token === i ? -1 : i;
  draw();
});
map.addEventListener("keydown", event => {
  const all = spans(), here = all.indexOf(event.target), [down, right] = steps[event.key] || [];
  if (here < 0) return;
  const step = right ? right * (map.dir === "rtl" ? -1 : 1) : down;
  const to = step ? within(here + step, all.length) : { Home: 0, End: all.length - 1 }[event.key];
  if (to !== undefined) { all.forEach((span, i) => { span.tabIndex = i === to ? 0 : -1; }); all[to].focus(); }
  else if (event.key === "Enter" || event.key === " ") { S.token = S.token === here ? -1 : here; draw(); }
  else if (event.key === "Escape") { S.token = -1; S.pick = null; draw(); }
  else return;
  event.preventDefault();
});

// Other colours, also for the maps below: theirs are on the line from white to an end of the first palette.
let painted = null;
const findPainted = () => [...document.querySelectorAll("section.lrpx:not(.explore) [style*='background:#']")].map(element => {
  const [high, zero, low, above, below] = Object.values(D.palettes)[0];
  const rgb = element.style.backgroundColor.match(/\d+/g).map(Number), same = other => other.every((v, i) => v === rgb[i]);
  if (same(above) || same(below)) return [element, same(above) ? 2 : -2];
  const side = rgb[0] >= rgb[2] ? 1 : -1, channel = side > 0 ? 1 : 0, to = side > 0 ? high : low;
  const share = (zero[channel] - rgb[channel]) / (zero[channel] - to[channel]);
  const near = zero.every((w, i) => Math.abs(w + (to[i] - w) * share - rgb[i]) < 1.5);
  return near ? [element, side * share] : null;
}).filter(Boolean);
function recolour() {
  painted ??= findPainted();  // the maps may stand behind the script
  for (const [element, share] of painted) {
    const rgb = mix(share);
    element.style.background = hex(rgb);
    element.style.color = ink(rgb);
  }
  const [high, , low, above, below] = D.palettes[S.palette], page = document.documentElement.style;
  for (const [name, rgb] of Object.entries({ high, low, above, below })) {
    page.setProperty(`--lrpx-${name}`, hex(rgb));
    for (const bar of document.querySelectorAll(".lrpx .bar")) bar.style.removeProperty(`--lrpx-${name}`);
  }
}
root.hidden = false;
start();
})();
