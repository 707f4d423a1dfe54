// Plots with numbers: tooltips, and other axes on demand (logarithmic, time instead of steps).
// Without this script the page shows every plot as it was drawn. plots.js follows page.js in one block.
const tip = document.getElementById("tip");
const number = (value) => String(Number(value.toPrecision(4))).replace("e+", "e").replace(/-/g, "\u2212");
const along = (axis, value) => {
  const f = axis.log ? Math.log : (x) => x;
  const [low, high] = axis.limits.map(f);
  return (f(value) - low) / (high - low);
};
const xOf = (panel, line, point) => (panel.time ? point[0] * line.stepSeconds : point[0]);
const row = (cells, lit, colour) => {
  const tr = document.createElement("tr");
  if (lit) tr.className = "lit";
  cells.forEach((text, i) => {
    const cell = document.createElement(i ? "td" : "th");
    if (!i && colour) {
      const swatch = document.createElement("i");
      swatch.className = "swatch";
      swatch.style.background = colour;
      cell.append(swatch);
    }
    cell.append(text);
    tr.append(cell);
  });
  return tr;
};
const place = (event) => {
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 18 + width > innerWidth ? event.clientX - width - 18 : event.clientX + 18;
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${Math.max(6, Math.min(event.clientY - height / 2, innerHeight - height - 6))}px`;
};

// Other axes: the lines are drawn again from their numbers.
const element = (name, attributes, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const ticks = ({ limits: [low, high], log }) => {
  if (log) {
    const powers = Math.log10(high / low);
    const factors = powers < 1.3 ? [1, 2, 3, 5] : powers < 2.5 ? [1, 3] : [1];
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      found.push(...factors.map((factor) => factor * 10 ** power).filter((value) => value >= low && value <= high));
    }
    if (found.length > 1) return found;
  }
  const rough = (high - low) / 5, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 2.5, 5, 10].find((factor) => factor * size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-9); i += 1) found.push(i * step);
  return found;
};
const apart = (wanted, gap) => {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]), placed = [...wanted];
  for (let k = 1; k < order.length; k += 1) placed[order[k]] = Math.max(placed[order[k]], placed[order[k - 1]] + gap);
  const last = order.length - 1;
  placed[order[last]] = Math.min(placed[order[last]], 1);
  for (let k = last - 1; k >= 0; k -= 1) placed[order[k]] = Math.min(placed[order[k]], placed[order[k + 1]] - gap);
  return placed;
};
const chooseLimits = (panel) => {
  const { drawn, x, y } = panel;
  const xs = panel.lines.flatMap((line) => line.points.map((point) => xOf(panel, line, point)));
  const positive = xs.filter((value) => value > 0);
  x.limits = [x.log ? Math.min(...positive) : panel.time ? 0 : drawn.x.limits[0], panel.time || x.log ? Math.max(...xs) : drawn.x.limits[1]];
  x.label = panel.time ? "seconds of training, without evaluations" : drawn.x.label;
  const lows = panel.lines.flatMap((line) => line.points.map((point) => point[2]));
  const [low, high] = drawn.y.limits;
  // Below zero there is no logarithm, and a logarithmic axis that was drawn ends where its margin would be on it.
  y.limits = [y.log && low <= 0 ? Math.min(...lows) * 0.98 : low, high];
};
const path = (points) => `M${points.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}`;
const redraw = (drawing, panel, styles, off) => {
  for (const old of all(drawing, ".own")) old.remove();
  const changed = panel.time || panel.x.log !== panel.drawn.x.log || panel.y.log !== panel.drawn.y.log;
  drawing.classList.toggle("redrawn", changed);
  if (!changed) {
    Object.assign(panel.x, panel.drawn.x);
    Object.assign(panel.y, panel.drawn.y);
    return;
  }
  chooseLimits(panel);
  const [left, top, width, height] = panel.box, own = element("g", { class: "own" });
  const grid = { stroke: "var(--grid)", "stroke-width": 0.7 };
  for (const value of ticks(panel.x)) {
    const x = left + along(panel.x, value) * width;
    own.append(element("line", { x1: x, x2: x, y1: top, y2: top + height, ...grid }));
    own.append(element("text", { x, y: top + height + 12, "text-anchor": "middle" }, number(value)));
  }
  for (const value of ticks(panel.y)) {
    const y = top + (1 - along(panel.y, value)) * height;
    own.append(element("line", { x1: left, x2: left + width, y1: y, y2: y, ...grid }));
    own.append(element("text", { x: left - 5, y: y + 3, "text-anchor": "end" }, number(value)));
  }
  own.append(element("path", { d: path([[left, top], [left, top + height], [left + width, top + height]]), fill: "none", stroke: "var(--muted)", "stroke-width": 0.7 }));
  own.append(element("text", { x: left + width / 2, y: top + height + 25, "text-anchor": "middle" }, panel.x.label));
  own.append(element("text", { transform: `translate(10 ${top + height / 2}) rotate(-90)`, "text-anchor": "middle" }, panel.y.label));
  const clip = element("svg", { x: left, y: top, width, height, overflow: "hidden" });
  own.append(clip);
  const ends = panel.lines.map((line) => Math.min(1, Math.max(0, along(panel.y, line.points.at(-1)[1]))));
  const heights = apart(ends, 10 / height);
  panel.lines.forEach((line, i) => {
    const { stroke, dash, thickness } = styles.get(String(line.series));
    const shown = line.points.filter((point) => (!panel.x.log || xOf(panel, line, point) > 0) && (!panel.y.log || point[2] > 0));
    const at = (point, k) => [along(panel.x, xOf(panel, line, point)) * width, (1 - along(panel.y, point[k])) * height];
    const hidden = off.has(String(line.series)) ? " off" : "";
    const common = { "data-series": line.series };
    const band = [...shown.map((point) => at(point, 3)), ...[...shown].reverse().map((point) => at(point, 2))];
    if (shown.length) {
      clip.append(element("path", { d: path(band), fill: stroke, opacity: 0.13, class: (line.band ? "" : "band") + hidden, ...common }));
      clip.append(element("path", { d: path(shown.map((point) => at(point, 1))), fill: "none", stroke, "stroke-width": thickness, "stroke-dasharray": dash, class: hidden, ...common }));
    }
    const right = left + width, [y0, y1] = [ends[i], heights[i]].map((y) => top + (1 - y) * height);
    own.append(element("line", { x1: right, x2: right + 0.025 * width, y1: y0, y2: y1, stroke, "stroke-width": 0.7, class: hidden, ...common }));
    own.append(element("text", { x: right + 0.035 * width, y: y1 + 3, style: `fill: ${stroke}`, class: `name${hidden}`, ...common }, line.short));
  });
  drawing.append(own);
};
const addButtons = (figure, panel, draw) => {
  const choices = [
    ["log x", (on) => { panel.x.log = on; }, panel.drawn.x.log, true],
    ["log y", (on) => { panel.y.log = on; }, panel.drawn.y.log, panel.lines.some((line) => line.points.every((point) => point[2] > 0))],
    ["time", (on) => { panel.time = on; }, false, panel.lines.every((line) => line.stepSeconds)],
  ];
  const bar = document.createElement("div");
  bar.className = "axes";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Axes");
  for (const [text, set, pressed, possible] of choices) {
    if (!possible) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-pressed", String(pressed));
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(on));
      set(on);
      draw();
    });
    bar.append(button);
  }
  figure.querySelector("figcaption").after(bar);
};

// Tooltips.
const nearest = (panel, line, x) => line.points.reduce((best, point) =>
  Math.abs(along(panel.x, xOf(panel, line, point)) - x) < Math.abs(along(panel.x, xOf(panel, line, best)) - x) ? point : best);
const tooltip = (panel, lines, x, y, styles) => {
  const points = lines.map((line) => ({ line, point: nearest(panel, line, x) }));
  const gap = ({ line, point }) => Math.hypot(along(panel.x, xOf(panel, line, point)) - x, along(panel.y, point[1]) - y);
  const close = points.reduce((a, b) => (gap(b) < gap(a) ? b : a)), at = xOf(panel, close.line, close.point);
  points.sort((a, b) => a.point[1] - b.point[1]);
  const table = document.createElement("table");
  table.append(row([`${panel.time ? "seconds" : panel.x.label} ${number(at)}`, "", ""], false));
  for (const { line, point } of points) {
    const band = point[2] === point[3] ? "" : `${number(point[2])} … ${number(point[3])}`;
    const own = xOf(panel, line, point), where = own === at ? "" : ` (at ${number(own)})`;
    table.append(row([line.label, number(point[1]) + where, band], line === close.line, styles.get(String(line.series))?.stroke));
  }
  return { table, at, line: close.line };
};
for (const figure of all(document, "figure")) {
  const source = figure.querySelector(".plot-data");
  if (!source) continue;
  const panels = JSON.parse(source.textContent);
  const drawing = figure.querySelector(".plot"), canvas = figure.querySelector(".canvas");
  const study = figure.closest(".study");
  const styles = new Map(all(study, ".chip").map((chip) => {
    const line = chip.querySelector("line");
    return [chip.dataset.series, { stroke: line.style.stroke, dash: line.getAttribute("stroke-dasharray"), thickness: line.getAttribute("stroke-width") * 0.65 }];
  }));
  const hiddenSeries = () => new Set(all(study, '.chip[aria-pressed="false"]').map((chip) => chip.dataset.series));
  for (const panel of panels) {
    Object.assign(panel, { time: false, drawn: { x: { ...panel.x }, y: { ...panel.y } } });
    if (panel.otherAxes) addButtons(figure, panel, () => redraw(drawing, panel, styles, hiddenSeries()));
  }
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  cursor.hidden = true;
  canvas.append(cursor);
  const leave = () => { tip.hidden = true; cursor.hidden = true; highlight(study, null); };
  const showValues = (event) => {
    const bounds = drawing.getBoundingClientRect(), scale = bounds.width / drawing.viewBox.baseVal.width;
    for (const panel of panels) {
      const [left, top, width, height] = panel.box.map((size) => size * scale);
      const x = (event.clientX - bounds.left - left) / width, y = 1 - (event.clientY - bounds.top - top) / height;
      if (x < -0.02 || x > 1.02 || y < -0.05 || y > 1.05) continue;
      const off = hiddenSeries(), lines = panel.lines.filter((line) => line.points.length && !off.has(String(line.series)));
      if (!lines.length) break;
      const { table, at, line } = tooltip(panel, lines, x, y, styles);
      tip.replaceChildren(table);
      place(event);
      highlight(study, String(line.series));
      cursor.hidden = false;
      cursor.style.left = `${left + along(panel.x, at) * width}px`;
      cursor.style.top = `${top}px`;
      cursor.style.height = `${height}px`;
      return;
    }
    leave();
  };
  for (const event of ["pointerleave", "pointercancel"]) canvas.addEventListener(event, leave);
  for (const event of ["pointermove", "pointerdown"]) canvas.addEventListener(event, showValues);
}
