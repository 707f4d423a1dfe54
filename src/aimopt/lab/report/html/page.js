// Legends that hide and highlight, light and dark, links into folded sections, and a page that reloads while a sweep runs.
// The page puts this file and plots.js into one block.
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

// A link into a folded section opens it; not every browser does that by itself.
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  for (let element = target; element; element = element.parentElement) if (element.tagName === "DETAILS") element.open = true;
  target.scrollIntoView({ behavior: "instant" });
};
addEventListener("hashchange", reveal);

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
if (location.hash && !(seconds && savedScroll !== null)) reveal();
