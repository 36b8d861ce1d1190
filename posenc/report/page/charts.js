"use strict";
// Draws the charts; hiding rows, two ranges, and the point nearest to the pointer or chosen with the arrow keys.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const charts = [];
  const hidden = new Set();
  const REACH = 60; // pixels between the pointer and the point that it means

  class Chart {
    constructor(figure, view, spec, points) {
      this.view = view;
      this.meta = spec.usermeta;
      this.points = points.filter((point) => point[this.meta.y] !== undefined);
      this.figure = figure;
      this.plot = figure.querySelector(".plot");
      this.tip = figure.querySelector(".tip");
      this.at = null;
      this.range = [view.signal("low"), view.signal("high")];
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", () => this.pick(null));
      this.plot.addEventListener("blur", () => this.pick(null));
      this.plot.addEventListener("keydown", (event) => this.key(event));
      const views = figure.querySelector(".views");
      views.hidden = false;
      for (const button of views.children) {
        button.addEventListener("click", () => {
          for (const other of views.children) other.setAttribute("aria-pressed", String(other === button));
          this.range = this.meta[button.dataset.view];
          this.pick(null);
          this.view.signal("low", this.range[0]).signal("high", this.range[1]).runAsync();
        });
      }
    }
    shown() {
      const [low, high] = this.range;
      const y = this.meta.y;
      return this.points.filter((one) => !hidden.has(one.r) && one[y] >= low && one[y] <= high);
    }
    // Where a point is in the element, in pixels.
    place(point) {
      const svg = this.plot.querySelector("svg");
      const box = svg.getBoundingClientRect();
      const outer = this.plot.getBoundingClientRect();
      const scale = box.width / svg.viewBox.baseVal.width;
      const origin = this.view.origin();
      const padding = this.view.padding();
      const x = this.view.scale("x")(point.x) + origin[0] + padding.left;
      const y = this.view.scale("y")(point[this.meta.y]) + origin[1] + padding.top;
      return [x * scale + box.left - outer.left, y * scale + box.top - outer.top];
    }
    point(event) {
      const box = this.plot.getBoundingClientRect();
      let best = null, least = REACH;
      for (const one of this.shown()) {
        const [x, y] = this.place(one);
        const far = Math.hypot(event.clientX - box.left - x, event.clientY - box.top - y);
        if (far < least) [best, least] = [one, far];
      }
      this.pick(best);
    }
    key(event) {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (event.key === "Escape") return this.pick(null);
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
      const all = this.shown();
      if (!all.length) return;
      event.preventDefault();
      const y = this.meta.y;
      const at = this.at && all.includes(this.at) ? this.at : null;
      if (at === null) return this.pick(all[0]);
      let near;
      if (step[0]) near = all.filter((one) => one.r === at.r && Math.sign(one.x - at.x) === step[0]);
      else near = all.filter((one) => one.r !== at.r && one.x === at.x && (step[1] > 0 ? one[y] >= at[y] : one[y] <= at[y]));
      near.sort((a, b) => Math.abs(a.x - at.x) - Math.abs(b.x - at.x) || Math.abs(a[y] - at[y]) - Math.abs(b[y] - at[y]));
      this.pick(near[0] || at);
    }
    pick(point) {
      if (point === this.at) return;
      this.at = point;
      this.view.signal("picked", point ? point.i : -1).runAsync();
      this.tip.hidden = !point;
      if (!point) return;
      // text nodes only: names are other people's
      const name = document.createElement("b");
      name.textContent = page.rows[point.r];
      const rest = point.t.map((text) => {
        const line = document.createElement("span");
        line.textContent = text;
        return line;
      });
      this.tip.replaceChildren(name, ...rest);
      const [x, y] = this.place(point);
      const room = this.plot.clientWidth, width = this.tip.offsetWidth, height = this.tip.offsetHeight;
      const tall = this.plot.clientHeight, gap = 16;
      let left = x + gap, top = Math.max(0, Math.min(y - height / 2, tall - height));
      if (left + width > room) left = x - gap - width;
      if (left < 0) {
        left = Math.max(0, Math.min(x - width / 2, room - width));
        top = y + gap + height <= tall ? y + gap : y - gap - height;
      }
      this.tip.style.left = `${left}px`;
      this.tip.style.top = `${top}px`;
    }
  }

  function show() {
    for (const button of document.querySelectorAll(".legend [data-row]")) {
      button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.row))));
    }
    for (const chart of charts) {
      chart.pick(null);
      chart.view.signal("hidden", [...hidden]).runAsync();
    }
  }

  function focus(row) {
    for (const chart of charts) chart.view.signal("focus", row).runAsync();
  }

  function legends() {
    for (const button of document.querySelectorAll(".legend button")) {
      const row = Number(button.dataset.row);
      button.addEventListener("click", () => {
        const rows = [...button.parentElement.querySelectorAll("[data-row]")].map((one) => Number(one.dataset.row));
        if (button.dataset.all) rows.forEach((one) => (button.dataset.all === "show" ? hidden.delete(one) : hidden.add(one)));
        else if (!hidden.delete(row)) hidden.add(row);
        focus(-1);
        show();
      });
      if (button.dataset.all) continue;
      const on = () => focus(hidden.has(row) ? -1 : row);
      button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && on());
      button.addEventListener("pointerleave", () => focus(-1));
      button.addEventListener("focus", () => button.matches(":focus-visible") && on());
      button.addEventListener("blur", () => focus(-1));
    }
  }

  async function draw(figure) {
    const { spec, data } = page.charts[Number(figure.dataset.chart)];
    const points = page.points[data];
    const whole = { ...spec, datasets: { points } };
    const options = { ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip: false, hover: false };
    const { view } = await window.vegaEmbed(figure.querySelector(".plot"), whole, options);
    charts.push(new Chart(figure, view, spec, points));
  }

  async function start() {
    for (const figure of document.querySelectorAll(".chart")) {
      await draw(figure);
      await new Promise((next) => setTimeout(next)); // the page answers in between
    }
    legends();
    performance.mark("charts");
    document.documentElement.dataset.ready = "charts";
  }
  start();
})();
