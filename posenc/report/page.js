"use strict";
// Draws the charts, sorts and filters the tables, switches between light and dark.
(() => {
  const number = (cell) => parseFloat(cell.textContent.trim().replace(/^\+|,/g, ""));

  for (const box of document.querySelectorAll(".table")) {
    const body = box.querySelector("tbody");
    const heads = [...box.querySelectorAll("thead th")];
    const labels = heads.map((head) => head.textContent);
    for (const row of body.rows) for (const cell of row.cells) cell.dataset.head = labels[cell.cellIndex]; // of a card
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const rows = [...body.rows];
        const numeric = column > 0 && rows.some((row) => !Number.isNaN(number(row.cells[column])));
        const compare = (a, b) => {
          const [one, other] = [a.cells[column], b.cells[column]];
          if (!numeric) return sign * one.textContent.trim().localeCompare(other.textContent.trim(), "en", { numeric: true });
          const [x, y] = [number(one), number(other)];
          return Number.isNaN(x) - Number.isNaN(y) || (Number.isNaN(x) ? 0 : sign * (x - y)); // without a number: last
        };
        body.append(...rows.sort(compare));
      });
    });
    const filter = box.querySelector(".filter");
    if (!filter) continue;
    filter.parentElement.hidden = body.rows.length < 4;
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
  }

  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const show = () => {
    button.setAttribute("aria-pressed", String(chosen ?? system.matches));
    root.style.colorScheme = chosen === null ? "" : chosen ? "dark" : "light";
  };
  button.addEventListener("click", () => {
    chosen = !(chosen ?? system.matches);
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  show();

  const tip = document.getElementById("tip");
  const tooltip = (handler, event, item, value) => {
    const text = value && (item.datum.datum ?? item.datum).text; // of the point that is nearest
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text; // text only: names are other people's
    tip.style.left = `${Math.max(0, Math.min(event.pageX + 16, innerWidth - tip.offsetWidth - 16))}px`;
    tip.style.top = `${event.pageY + 16}px`;
  };
  const options = { ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip };
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const views = [];
  const draw = async () => {
    for (const [i, plot] of plots.entries()) views.push((await vegaEmbed(plot, specs[i], options)).view);
    root.dataset.ready = "charts";
  };
  draw();

  // On paper two charts share a line. Without this, those of a wide window would be scaled down, their text with them.
  const PRINTED_WIDTH = 330; // pixels
  addEventListener("beforeprint", () => {
    for (const view of views) view.width(PRINTED_WIDTH).run();
    for (const list of document.querySelectorAll("#runs details")) list.open = true;
  });
  addEventListener("afterprint", () => views.forEach((view, i) => view.width(plots[i].clientWidth).run()));
})();
