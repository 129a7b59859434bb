// plotly's script (5 MB), loaded once a page; this stands before shell.js and figure.js.
// The shell asks for it as soon as the panel is in the page, so that it is read while the kernel
// still makes the first figure; a figure asks where nobody did, or where nothing came.
const shared = (globalThis[Symbol.for("workbench.plotly")] ??= new Map()); // version -> loading
const ASK_AGAIN = 5000; // ms; the one that asked first may be gone, its kernel busy

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

