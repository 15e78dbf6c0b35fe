"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 600px)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const template = () => {
    const ink = dark.matches ? "#d5d9e0" : "#30343b";
    const grid = dark.matches ? "#31363f" : "#e6e8ec";
    const box = dark.matches ? "#23272e" : "#ffffff";
    const axis = { gridcolor: grid, linecolor: grid, tickcolor: grid, spikecolor: ink, title: { font: { size: 12 } } };
    return { layout: {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" },
      xaxis: axis,
      yaxis: axis,
      annotationdefaults: { font: { color: ink } },
      hoverlabel: { bgcolor: box, bordercolor: grid, font: { color: ink, size: 12.5 } },
    } };
  };
  const frame = (name) => document.getElementById("figure-" + name);
  const config = { responsive: true, displaylogo: false, displayModeBar: false, showTips: false };
  for (const [name, figure] of Object.entries(figures)) {
    const layout = { ...figure.layout, template: template() };
    if (narrow.matches) layout.margin = { ...layout.margin, r: 6 };
    if (coarse) layout.dragmode = false;
    Plotly.newPlot(frame(name), figure.data, layout, config);
  }
  dark.addEventListener("change", () => {
    for (const name of Object.keys(figures)) Plotly.relayout(frame(name), { template: template() });
  });

  // Figures with the same link show the same part of their x axis.
  let following = false;
  for (const [name, figure] of Object.entries(figures)) {
    frame(name).on("plotly_relayout", (change) => {
      const moved = Object.keys(change).some((key) => key.startsWith("xaxis"));
      if (following || !moved) return;
      following = true;
      const range = frame(name)._fullLayout.xaxis.range.slice();
      const others = Object.keys(figures).filter((other) => other !== name && figures[other].link === figure.link);
      Promise.all(others.map((other) => Plotly.relayout(frame(other), { "xaxis.range": range })))
        .finally(() => { following = false; });
    });
  }

  for (const key of document.querySelectorAll("button[data-key]")) {
    key.addEventListener("click", () => {
      const plot = frame(key.dataset.figure);
      const shown = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", String(shown));
      const traces = plot.data.flatMap((trace, index) => (trace.legendgroup === key.dataset.key ? [index] : []));
      if (traces.length) Plotly.restyle(plot, { visible: shown }, traces);
    });
  }
  document.documentElement.dataset.drawn = "true";
})();
