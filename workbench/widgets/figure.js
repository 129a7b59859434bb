// A live plotly figure whose script is loaded once a page, by plotly.js.
// plotly's own widget carries the script in every figure, gives up on a figure whose script is not
// read within two seconds, and leaves views listening that are no longer in the page.
const DRAWN = "plotlywidget-after-render"; // plotly's event, of the whole page

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
      const drawn = ({ detail }) => {
        if (!el.contains(detail?.element)) return;
        document.removeEventListener(DRAWN, drawn);
        model.send({ drawn: true });
      };
      document.addEventListener(DRAWN, drawn);
      mine.push(() => document.removeEventListener(DRAWN, drawn));
      let end;
      try { end = inner.render({ el }); } finally { views = null; }
      return () => { mine.forEach((off) => off()); end?.(); };
    },
  };
};
