// A live plotly figure whose script (5 MB) is loaded once a page, when it is first needed.
// plotly's own widget carries the script in every figure, gives up on a figure whose script is not
// read within two seconds, and leaves views listening that are no longer in the page.
const shared = (globalThis[Symbol.for("workbench.plotly")] ??= new Map()); // version -> loading
const ASK_AGAIN = 5000; // ms; the figure that asked first may be gone, its kernel busy

function plotly(model) {
  const version = model.get("_plotly_version");
  if (!shared.has(version)) shared.set(version, { module: null, waiting: [] });
  const page = shared.get(version);
  if (page.module) return page.module;
  return new Promise((resolve) => {
    let again = 0;
    const ask = (patience) => {
      model.send({ ask: "plotly" });
      again = setTimeout(ask, patience, 2 * patience); // each answer is 5 MB
    };
    const given = (message, buffers) => {
      if (message?.plotly !== version || !buffers?.length || page.module) return;
      const url = URL.createObjectURL(new Blob(buffers, { type: "text/javascript" }));
      page.module = import(url);
      page.waiting.splice(0).forEach((one) => one(page.module));
    };
    model.on("msg:custom", given);
    page.waiting.push((module) => {
      clearTimeout(again);
      model.off("msg:custom", given);
      resolve(module);
    });
    if (page.waiting.length === 1) ask(ASK_AGAIN);
    else again = setTimeout(ask, ASK_AGAIN, 2 * ASK_AGAIN);
  });
}

// plotly says so of a property that a change of several traces leaves alone in one of them. Its
// model takes that for the property's value, and a view that is made later cannot draw it.
function known(value) {
  if (value === "_undefined_") return undefined;
  if (Array.isArray(value)) return value.map(known);
  if (!value || Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, known(one)]));
}

export default () => {
  const calls = new Map(); // event -> listeners of plotly's model and of the views in the page
  const early = []; // what happened before the script was there
  let current = null, views = null, inner = null, ready = null;

  const tell = (event, name, value) => {
    current = [name, value];
    for (const call of [...(calls.get(event) ?? [])]) {
      try { call(); } catch (error) { console.error(error); } // the other views still hear of it
    }
    current = null;
  };
  const wrapped = (model) => ({
    ...model,
    get: (name) => (current?.[0] === name ? current[1] : model.get(name)),
    on: (event, call) => {
      if (!calls.has(event)) calls.set(event, new Set());
      calls.get(event).add(call);
      views?.push(() => calls.get(event).delete(call));
    },
  });

  async function load(model) {
    const made = (await plotly(model)).default();
    made.initialize({ model: wrapped(model) });
    for (const one of early.splice(0)) tell(...one);
    inner = made;
  }

  return {
    initialize({ model }) {
      model.on("all", (event) => {
        if (!event.startsWith("change:_py2js_")) return;
        const name = event.slice("change:".length), value = known(model.get(name));
        if (value === null) return;
        if (inner) tell(event, name, value);
        else early.push([event, name, value]);
      });
      ready = load(model);
    },
    async render({ model, el }) {
      el.style.minHeight = `${model.get("_widget_layout")?.height ?? 360}px`; // nothing jumps
      await ready;
      el.style.minHeight = "";
      const mine = (views = []);
      let end;
      try { end = inner.render({ el }); } finally { views = null; }
      return () => { mine.forEach((off) => off()); end?.(); };
    },
  };
};
