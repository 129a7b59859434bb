// Draws the charts over their static pictures. Without this script the page reads the same.
(async () => {
  const places = [...document.querySelectorAll("[data-chart]")];
  const packed = document.getElementById("wb-plotly");
  if (!places.length || !packed || !("DecompressionStream" in window)) return;
  const bytes = Uint8Array.from(atob(packed.textContent.trim()), (c) => c.charCodeAt(0));
  const unzipped = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.textContent = await new Response(unzipped).text();
  document.head.append(library);

  const swaps = JSON.parse(document.getElementById("wb-swaps").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const figureOf = (place) => {
    let text = document.getElementById(place.dataset.chart).textContent;
    if (dark.matches)
      for (const [light, other] of Object.entries(swaps)) text = text.replaceAll(light, other);
    return JSON.parse(text);
  };
  const draw = async (place) => {
    const { data, layout, config } = figureOf(place);
    const still = place.parentElement.querySelector(".static");
    place.hidden = false;
    try {
      await Plotly.react(place, data, layout, config);
      still.style.display = "none";
    } catch (error) {
      // the static picture stays in its place
      place.hidden = true;
      console.warn("A chart was not drawn; its static picture is shown.", error.message);
    }
  };
  const drawAll = async () => {
    for (const place of places) await draw(place);
    document.documentElement.dataset.charts = "drawn";
  };
  dark.addEventListener("change", drawAll);
  await drawAll();
})();
