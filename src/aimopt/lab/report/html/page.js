"use strict";
// Legends that hide and highlight, tooltips with numbers, light and dark, and a page that reloads while a sweep runs.
(() => {
  const remember = (key, value) => { try { sessionStorage.setItem(key, value); } catch { /* private window */ } };
  const recall = (key) => { try { return sessionStorage.getItem(key); } catch { return null; } };
  const all = (root, selector) => [...root.querySelectorAll(selector)];
  const page = location.pathname;

  // Legends.
  const marked = (study, series) => all(study, `.plot [data-series="${series}"]`);
  const highlight = (study, series) => {
    for (const plot of all(study, ".plot")) plot.classList.toggle("focus", series !== null);
    for (const part of all(study, ".plot .lit")) part.classList.remove("lit");
    if (series !== null) for (const part of marked(study, series)) part.classList.add("lit");
  };
  const show = (study, chip, shown) => {
    chip.setAttribute("aria-pressed", String(shown));
    for (const part of marked(study, chip.dataset.series)) part.classList.toggle("off", !shown);
  };
  all(document, ".study").forEach((study, index) => {
    const key = `hidden ${page} ${index}`;
    const chips = all(study, ".legend .chip");
    const hidden = new Set(JSON.parse(recall(key) || "[]"));
    for (const chip of chips) {
      const name = chip.textContent.trim();
      if (hidden.has(name)) show(study, chip, false);
      chip.addEventListener("click", () => {
        const shown = chip.getAttribute("aria-pressed") === "false";
        show(study, chip, shown);
        if (shown) hidden.delete(name); else hidden.add(name);
        remember(key, JSON.stringify([...hidden]));
        highlight(study, shown ? chip.dataset.series : null);
      });
      for (const event of ["mouseenter", "focus"]) chip.addEventListener(event, () => {
        if (chip.getAttribute("aria-pressed") === "true") highlight(study, chip.dataset.series);
      });
      for (const event of ["mouseleave", "blur"]) chip.addEventListener(event, () => highlight(study, null));
    }
  });

  // Tooltips.
  const tip = document.getElementById("tip");
  const number = (value) => String(Number(value.toPrecision(4))).replace("-", "\u2212");
  const along = (axis, value) => {
    const f = axis.log ? Math.log : (x) => x;
    const [low, high] = axis.limits.map(f);
    return (f(value) - low) / (high - low);
  };
  const nearest = (points, plot, x) => points.reduce((best, point) =>
    Math.abs(along(plot.x, point[0]) - x) < Math.abs(along(plot.x, best[0]) - x) ? point : best);
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
  for (const figure of all(document, "figure")) {
    const source = figure.querySelector(".plot-data");
    if (!source) continue;
    const plot = JSON.parse(source.textContent);
    const drawing = figure.querySelector(".plot"), canvas = figure.querySelector(".canvas");
    const study = figure.closest(".study");
    const colours = new Map(all(study, ".chip").map((chip) => [chip.dataset.series, chip.querySelector("line").style.stroke]));
    const cursor = document.createElement("div");
    cursor.className = "cursor";
    cursor.hidden = true;
    canvas.append(cursor);
    const leave = () => { tip.hidden = true; cursor.hidden = true; highlight(study, null); };
    const showValues = (event) => {
      const bounds = drawing.getBoundingClientRect();
      const scale = bounds.width / drawing.viewBox.baseVal.width;
      const [left, top, width, height] = plot.box.map((size) => size * scale);
      const x = (event.clientX - bounds.left - left) / width;
      const y = 1 - (event.clientY - bounds.top - top) / height;
      if (x < -0.02 || x > 1.02 || y < -0.05 || y > 1.05) return leave();
      const off = new Set(all(study, '.chip[aria-pressed="false"]').map((chip) => chip.dataset.series));
      const lines = plot.lines.filter((line) => line.points.length && !off.has(String(line.series)));
      if (!lines.length) return leave();
      const nearestPoints = lines.map((line) => ({ line, point: nearest(line.points, plot, x) }));
      const gap = ({ point }) => Math.hypot(along(plot.x, point[0]) - x, along(plot.y, point[1]) - y);
      const close = nearestPoints.reduce((a, b) => (gap(b) < gap(a) ? b : a));
      nearestPoints.sort((a, b) => a.point[1] - b.point[1]);
      const table = document.createElement("table");
      table.append(row([`${plot.x.label} ${number(close.point[0])}`, "", ""], false));
      for (const { line, point } of nearestPoints) {
        const band = point[2] === point[3] ? "" : `${number(point[2])} … ${number(point[3])}`;
        const where = point[0] === close.point[0] ? "" : ` (at ${number(point[0])})`;
        table.append(row([line.label, number(point[1]) + where, band], line === close.line, colours.get(String(line.series))));
      }
      tip.replaceChildren(table);
      place(event);
      highlight(study, String(close.line.series));
      cursor.hidden = false;
      cursor.style.left = `${left + along(plot.x, close.point[0]) * width}px`;
      cursor.style.top = `${top}px`;
      cursor.style.height = `${height}px`;
    };
    for (const event of ["pointerleave", "pointercancel"]) canvas.addEventListener(event, leave);
    for (const event of ["pointermove", "pointerdown"]) canvas.addEventListener(event, showValues);
  }

  // Light and dark.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (recall("theme") || (system.matches ? "dark" : "light")) === "dark";
  const apply = () => {
    document.documentElement.style.colorScheme = recall("theme") || "";
    theme.textContent = dark() ? "Light" : "Dark";
  };
  theme.hidden = false;
  theme.addEventListener("click", () => { remember("theme", dark() ? "light" : "dark"); apply(); });
  system.addEventListener("change", apply);
  apply();

  // Nothing is folded in print.
  addEventListener("beforeprint", () => all(document, "details").forEach((section) => { section.open = true; }));

  // A sweep is running: look again, and stay where the reader is.
  const seconds = Number(document.body.dataset.refresh);
  const savedScroll = recall(`scroll ${page}`);
  const open = JSON.parse(recall(`open ${page}`) || "[]");
  if (seconds && savedScroll !== null) {
    all(document, "details").forEach((section, i) => { section.open = open.includes(i); });
    document.documentElement.style.scrollBehavior = "auto";
    scrollTo(0, Number(savedScroll));
    document.documentElement.style.scrollBehavior = "";
  }
  if (seconds) setInterval(() => {
    if (document.hidden) return;
    remember(`scroll ${page}`, String(scrollY));
    const unfolded = all(document, "details").flatMap((section, i) => (section.open ? [i] : []));
    remember(`open ${page}`, JSON.stringify(unfolded));
    location.reload();
  }, seconds * 1000);
})();
