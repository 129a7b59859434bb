// The one piece of JavaScript: keys, theme, width, clicks on [data-wb], copying.
// It sends one action name; the kernel checks it against its list.
const KEYS = {
  n: "step", p: "back", f: "run_to_first_bad", r: "reset", ".": "stop", o: "toggle_original",
  c: "all_switches", m: "pin_view", "/": "search", j: "next_suspicious", k: "previous_suspicious",
  ArrowUp: "layer_above", ArrowDown: "layer_below", "?": "keys",
  1: "tab:origin", 2: "tab:ranges", 3: "tab:timeline", 4: "tab:compare", 5: "tab:evidence",
};
const widths = new Map(); // one entry a view of this panel: the narrowest decides

function isText(node) {
  return node.matches?.("input:not([type=radio]):not([type=checkbox]), textarea, select, [contenteditable]");
}

function copy(text) {
  const fallback = () => {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).catch(fallback);
  else fallback();
}

const FIELDS = { note: ".wb-note-sentence textarea" };

// A field that has just been opened is in the page a few frames later.
function focus(root, name, tries = 60) {
  const field = root?.querySelector(FIELDS[name] ?? "");
  if (field?.offsetParent) field.focus();
  else if (tries > 0) requestAnimationFrame(() => focus(root, name, tries - 1));
}

// A file beside the notebook, as the server that shows the notebook gives it out.
function openFile(name) {
  const base = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "{}").baseUrl ?? "/";
  const path = decodeURIComponent(location.pathname.split("/tree/")[1] ?? "");
  const file = [...path.split("/").slice(0, -1), name].map(encodeURIComponent).join("/");
  window.open(`${base}files/${file}`, "_blank", "noopener");
}

function attach(root, model, send) {
  const off = new AbortController();
  const on = (name, call) => root.addEventListener(name, call, { signal: off.signal });
  root.tabIndex = 0;
  on("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.key === "Tab") return;
    if (event.key === "Escape") return root.closest(".jp-Notebook")?.focus();
    event.stopPropagation(); // else JupyterLab would insert or delete cells
    const press = event.key === "Enter" || event.key === " ";
    const link = press && event.target.closest?.("[data-wb], [data-wb-file]");
    if (link?.dataset?.wbFile) return event.preventDefault(), openFile(link.dataset.wbFile);
    if (link) return event.preventDefault(), send(link.dataset.wb);
    if (press || isText(event.target) || !(event.key in KEYS)) return;
    event.preventDefault();
    if (event.key === "/") root.querySelector(".wb-search input")?.focus();
    send(KEYS[event.key]);
  });
  on("click", (event) => {
    const link = event.target.closest?.("[data-wb], [data-wb-file]");
    if (link?.dataset?.wbFile && root.contains(link)) return event.preventDefault(), openFile(link.dataset.wbFile);
    if (link && root.contains(link)) event.preventDefault(), send(link.dataset.wb);
  });
  const theme = () => {
    model.set("dark", document.body.dataset.jpThemeLight === "false");
    model.save_changes();
  };
  const watch = new MutationObserver(theme);
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  const key = Symbol("view");
  const size = new ResizeObserver(([entry]) => {
    const px = Math.round(entry.contentRect.width);
    if (px < 200) return; // hidden
    widths.set(key, px);
    root.classList.toggle("wb-narrow", px < 1100);
    root.classList.toggle("wb-wide", px >= 1700);
    const narrowest = Math.min(...widths.values());
    if (narrowest !== model.get("width")) model.set("width", narrowest), model.save_changes();
  });
  size.observe(root);
  theme();
  return () => { off.abort(); watch.disconnect(); size.disconnect(); widths.delete(key); };
}

function render({ model, el }) {
  const send = (action) => model.send({ action });
  const copied = (message) => {
    if (typeof message.copy === "string") copy(message.copy);
    if (message.focus in FIELDS) focus(el.closest(".wb-root"), message.focus);
  };
  model.on("msg:custom", copied);
  let detach = () => {}, frame = 0;
  const wait = () => {
    const root = el.closest(".wb-root");
    if (root) detach = attach(root, model, send);
    else frame = requestAnimationFrame(wait); // not in the page yet
  };
  wait();
  plotly(model);
  return () => { cancelAnimationFrame(frame); model.off("msg:custom", copied); detach(); };
}

export default { render };
