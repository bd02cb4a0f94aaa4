"use strict";
(async () => {
  const page = document.documentElement;
  const unpack = async (id) => {
    const letters = document.getElementById(id).textContent;
    const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const nextFrame = () => new Promise((resolve) => setTimeout(resolve, 0));
  if (typeof DecompressionStream === "undefined") {
    document.querySelector(".no-charts").hidden = false;
    page.dataset.ready = "text";
    return;
  }
  await nextFrame();
  const data = JSON.parse(await unpack("data"));
  const library = document.createElement("script");
  library.textContent = await unpack("plotly");
  document.head.append(library);

  // Lengths of strokes and gaps in pixels, one pattern a line: they differ without colour too.
  const DASHES = ["", "7 4", "2 3", "7 3 2 3", "16 4", "16 3 2 3", "7 3 2 3 2 3", "10 10"];
  const LIMIT_DASH = "1 5";
  const strokes = (dash) => (dash ? dash.split(" ").map((length) => length + "px").join(",") : "solid");
  const LOG_TICKS = Array.from({ length: 18 }, (_, n) => (n % 2 ? 3 : 1) * 10 ** (Math.floor(n / 2) - 1));
  const MARGIN = { l: 52, r: 10 };
  const coarse = matchMedia("(pointer: coarse)").matches;
  const css = (name) => getComputedStyle(page).getPropertyValue(name).trim();
  // Plotly reads some marks in text as HTML: names are shown as they are.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const [factor, unit] = data.seconds > 10800 ? [3600, "h"] : data.seconds > 600 ? [60, "min"] : [1, "s"];
  const inUnit = (times) => (factor === 1 ? times : times.map((time) => time / factor));
  const whole = [0, Math.max(data.seconds, 1e-6) / factor];
  const charts = [];
  let range = whole.slice();

  const layout = (height, bottom) => ({
    height,
    margin: { l: MARGIN.l, r: MARGIN.r, t: 10, b: bottom },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--soft") },
    showlegend: false,
    dragmode: coarse ? false : "zoom",
    hovermode: "x unified",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
    xaxis: {
      range: range.slice(), ticksuffix: " " + unit, gridcolor: css("--grid"), zeroline: false,
      nticks: coarse ? 5 : 10, hoverformat: ".3f", fixedrange: coarse, tickangle: 0,
      showline: true, linecolor: css("--line"),
    },
    yaxis: { gridcolor: css("--grid"), zeroline: false, fixedrange: true, nticks: 4, automargin: false },
  });

  const budget = (item) => {
    const traces = item.layers.map((layer) => ({
      type: "scatter", mode: "lines", x: inUnit(item.x), y: layer.y, name: plain(layer.name),
      stackgroup: "time", line: { shape: "hv", width: 0.5, color: css("--k-" + layer.key) },
      fillcolor: css("--k-" + layer.key),
      fillpattern: layer.pattern
        ? { shape: layer.pattern, fillmode: "overlay", fgcolor: css("--weave"), bgcolor: css("--k-" + layer.key), size: 7, solidity: 0.22 }
        : undefined,
      hovertemplate: "%{y:.1f} %", xaxis: "x", yaxis: "y",
    }));
    const n = item.marks.length;
    const height = 220 + 34 * n;
    const shape = layout(height, 24);
    const top = n ? 220 / height : 1;
    shape.yaxis.domain = [0, top];
    shape.yaxis.range = [0, 100];
    shape.yaxis.ticksuffix = " %";
    shape.yaxis.tickvals = [0, 25, 50, 75, 100];
    shape.shapes = data.noted.map((mark) => ({
      type: "line", xref: "x", yref: "y", x0: mark.x / factor, x1: mark.x / factor, y0: 0, y1: 100,
      line: { color: css("--ink"), width: 1, dash: "dash" },
    }));
    shape.annotations = data.noted.map((mark) => ({
      xref: "x", yref: "y", x: mark.x / factor, y: 50, textangle: -90, showarrow: false, xanchor: "left",
      text: plain(mark.name), font: { size: 10, color: css("--ink") }, bgcolor: css("--card"), opacity: 0.85,
    }));
    if (n) {
      shape.yaxis2 = {
        domain: [Math.min(top + 0.02, 0.98), 1], range: [n - 0.5, -0.5], fixedrange: true,
        showticklabels: false, showgrid: false, zeroline: false,
      };
      item.marks.forEach((mark, index) => {
        const colour = css(mark.is_proven ? "--bad" : "--doubtful");
        const spans = mark.spans.map(inUnit);
        for (const [begin, end] of spans) {
          shape.shapes.push({
            type: "rect", xref: "x", yref: "y2", x0: begin, x1: end, y0: index, y1: index + 0.4,
            fillcolor: mark.is_proven ? colour : "rgba(0,0,0,0)",
            line: { color: colour, width: 1.5, dash: mark.is_proven ? "solid" : "dot" },
          });
        }
        const [first] = spans[0];
        const isLate = first > whole[0] + 0.6 * whole[1];
        shape.annotations.push({
          xref: "x", yref: "y2", x: isLate ? spans[spans.length - 1][1] : first, y: index - 0.25, showarrow: false,
          xanchor: isLate ? "right" : "left", borderpad: 0,
          text: plain(`${mark.number} ${mark.name}${mark.is_proven ? "" : " (not proven)"}`),
          font: { size: 11, color: css("--ink") },
        });
      });
      // Hidden points make the second axis exist without a layer of its own.
      traces.push({ x: [null], y: [null], xaxis: "x", yaxis: "y2", hoverinfo: "skip", mode: "markers" });
    }
    return [traces, shape];
  };

  const rows = (chart) => {
    const isStack = chart.style === "stack";
    const shape = layout(130, 20);
    const told = chart.unit === "µs" ? chart.lines.flatMap((line) => line.y).filter((y) => y > 0) : [];
    const isLog = told.length > 0 && Math.max(...told) > 8 * Math.min(...told);
    shape.yaxis.rangemode = "tozero";
    if (isLog) Object.assign(shape.yaxis, { type: "log", tickvals: LOG_TICKS, rangemode: "normal" });
    else if (chart.top) shape.yaxis.range = [0, chart.top * 1.02];
    const traces = chart.lines.map((line, index) => {
      const colour = line.is_limit ? css("--limit") : css("--line-" + (index % 8));
      const trace = {
        type: "scatter", name: plain(line.name), x: inUnit(line.x), y: line.y, connectgaps: false,
        mode: chart.style === "points" ? "markers" : "lines",
        marker: { color: colour, size: 5, symbol: index },
        line: { color: colour, width: line.is_limit ? 1 : 1.5, dash: strokes(line.is_limit ? LIMIT_DASH : DASHES[index % 8]),
                shape: chart.style === "line" ? "linear" : "hv" },
        hovertemplate: "%{y:.4~g} " + chart.unit,
      };
      if (isStack) {
        trace.stackgroup = "all";
        trace.line = { shape: "hv", width: 0.5, color: colour };
        trace.fillpattern = { shape: ["", "x", "."][index % 3], fillmode: "overlay", fgcolor: css("--weave"), bgcolor: colour, size: 6, solidity: 0.25 };
        trace.fillcolor = colour;
        if (index === 2) { trace.fillcolor = trace.line.color = trace.fillpattern.bgcolor = css("--k-no_demand"); }
      }
      return trace;
    });
    return [traces, shape];
  };

  const legend = (place, chart) => {
    place.replaceChildren(...chart.lines.map((line, index) => {
      const item = document.createElement("span");
      const colour = line.is_limit ? "var(--limit)" : `var(--line-${index % 8})`;
      const dash = line.is_limit ? LIMIT_DASH : DASHES[index % 8];
      const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      drawing.setAttribute("aria-hidden", "true");
      const make = (name, values) => {
        const part = document.createElementNS("http://www.w3.org/2000/svg", name);
        Object.entries(values).forEach(([key, value]) => part.setAttribute(key, value));
        drawing.append(part);
      };
      if (chart.style === "stack") {
        const box = document.createElement("i");
        box.className = "swatch layer " + ["plain", "cross", "dots"][index % 3];
        box.style.backgroundColor = index === 2 ? "var(--k-no_demand)" : colour;
        box.style.margin = "0";
        item.append(box);
      } else {
        make("line", { x1: 0, x2: 44, y1: 5, y2: 5, style: `stroke:${colour}`, "stroke-width": 2, "stroke-dasharray": dash });
        item.append(drawing);
      }
      const name = document.createElement("bdi");
      name.textContent = line.name;
      item.append(name);
      return item;
    }));
  };

  const showRange = () => {
    document.getElementById("range").textContent =
      `${range[0].toFixed(2)} to ${range[1].toFixed(2)} of ${whole[1].toFixed(2)} ${unit}`;
    page.dataset.range = range.join(" ");
  };
  let isMoving = false;
  const move = async (begin, end) => {
    const width = Math.min(Math.max(end - begin, whole[1] * 1e-6), whole[1]);
    const start = Math.min(Math.max(begin, whole[0]), whole[1] - width);
    range = [start, start + width];
    showRange();
    isMoving = true;
    await Promise.all(charts.map((chart) => Plotly.relayout(chart.div, { "xaxis.range": range.slice() })));
    isMoving = false;
  };
  const act = (what) => {
    const [begin, end] = range;
    const width = end - begin;
    const middle = (begin + end) / 2;
    const moves = {
      left: [begin - width / 3, end - width / 3], right: [begin + width / 3, end + width / 3],
      in: [middle - width / 4, middle + width / 4], out: [middle - width, middle + width], reset: whole,
    };
    return move(...moves[what]);
  };

  const follow = (div) => {
    const cursor = document.createElement("div");
    cursor.className = "cursor";
    div.append(cursor);
    div.on("plotly_relayout", (change) => {
      if (isMoving) return;
      if (change["xaxis.autorange"]) move(...whole);
      else if (change["xaxis.range[0]"] !== undefined) move(change["xaxis.range[0]"], change["xaxis.range[1]"]);
    });
    div.on("plotly_doubleclick", () => { move(...whole); return false; });
    div.addEventListener("pointermove", (event) => {
      const left = event.clientX - div.getBoundingClientRect().left;
      const isIn = left >= MARGIN.l && left <= div.clientWidth - MARGIN.r;
      document.querySelectorAll(".cursor").forEach((line) => {
        line.style.display = isIn && line !== cursor ? "block" : "none";
        line.style.left = `${left}px`;
      });
    });
    div.addEventListener("pointerleave", () => {
      document.querySelectorAll(".cursor").forEach((line) => { line.style.display = "none"; });
    });
  };

  const options = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  for (const div of document.querySelectorAll("[data-budget]")) {
    const item = data.budgets[Number(div.dataset.budget)];
    charts.push({ div, make: () => budget(item) });
  }
  for (const div of document.querySelectorAll("[data-panel]")) {
    const chart = data.panels[div.dataset.panel][Number(div.dataset.row)];
    legend(div.parentElement.querySelector("[data-legend]"), chart);
    charts.push({ div, make: () => rows(chart) });
  }
  for (const chart of charts) {
    const [traces, shape] = chart.make();
    chart.div.style.height = `${shape.height}px`;
    await Plotly.newPlot(chart.div, traces, shape, options);
    follow(chart.div);
    await nextFrame();
  }
  showRange();

  const redraw = () => Promise.all(charts.map((chart) => {
    const [traces, shape] = chart.make();
    return Plotly.react(chart.div, traces, shape, options);
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.querySelectorAll("[data-do]").forEach((button) => {
    button.addEventListener("click", () => act(button.dataset.do));
  });
  document.querySelectorAll(".goto").forEach((button) => {
    button.addEventListener("click", async () => {
      const begin = Number(button.dataset.begin) / factor, end = Number(button.dataset.end) / factor;
      const room = Math.max((end - begin) * 0.25, whole[1] * 1e-4);
      await move(begin - room, end + room);
      document.getElementById("budget").scrollIntoView();
    });
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.(".scroll")) return;
    const what = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", 0: "reset" }[event.key];
    if (what) { event.preventDefault(); act(what); }
  });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((item) => { item.open = true; });
    charts.forEach((chart) => Plotly.relayout(chart.div, { width: 680 }));
  });
  addEventListener("afterprint", () => {
    opened.forEach((item) => { item.open = false; });
    charts.forEach((chart) => Plotly.relayout(chart.div, { width: null, autosize: true }));
  });
  page.dataset.ready = "charts";
})();
