// Draws the figures in the theme's colours, and again when the theme changes.
(() => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const system = matchMedia("(prefers-color-scheme: dark)");

  // "var(--ink)" in a figure stands for the colour that the style gives it.
  const coloured = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, style)]));
  };

  const axis = (given) => ({
    gridcolor: "var(--line)", zerolinecolor: "var(--muted)", linecolor: "var(--line)",
    zeroline: false, automargin: true, fixedrange: true, ...given,
  });
  const layoutOf = (given) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: "var(--ink)" },
    margin: { l: 48, r: 12, t: 12, b: 44 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: "var(--raised)", bordercolor: "var(--line)", font: { color: "var(--ink)" } },
    dragmode: false, ...given, xaxis: axis(given.xaxis), yaxis: axis(given.yaxis),
  });

  const draw = () => {
    const style = getComputedStyle(root);
    for (const [name, figure] of Object.entries(figures)) {
      Plotly.react(
        name, coloured(figure.data, style), coloured(layoutOf(figure.layout), style),
        { displayModeBar: false, responsive: true },
      );
    }
  };

  system.addEventListener("change", draw);
  draw();
})();
