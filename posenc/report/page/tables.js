"use strict";
// Sorting and filtering of tables; the switch between light and dark.
(() => {
  function number(cell, by) {
    const value = cell.dataset[by] ?? (by === "c" ? undefined : cell.dataset.v);
    if (value !== undefined) return Number(value);
    if (cell.dataset.v !== undefined) return NaN; // a cell of numbers without this one
    return parseFloat(cell.textContent.replace(/^\+/, ""));
  }

  function compare(a, b, numeric, sign) {
    if (!numeric) return sign * a.text.localeCompare(b.text, "en", { numeric: true });
    const lack = Number(Number.isNaN(a.number)) - Number(Number.isNaN(b.number));
    return lack || (Number.isNaN(a.number) ? 0 : sign * (a.number - b.number)); // without a number: last
  }

  function sort(box, column, descending) {
    const body = box.querySelector("tbody");
    const by = box.querySelector(".by")?.value ?? "v";
    const rows = [...body.rows].map((row) => {
      const cell = row.cells[column];
      return { row, text: cell.textContent.trim(), number: column === 0 ? NaN : number(cell, by) };
    });
    const numeric = rows.some((one) => !Number.isNaN(one.number));
    rows.sort((a, b) => compare(a, b, numeric, descending ? -1 : 1));
    body.append(...rows.map((one) => one.row));
  }

  function filter(box) {
    const words = box.querySelector(".filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = box.querySelector(".states")?.value ?? "";
    const rows = [...box.querySelector("tbody").rows];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const states = JSON.parse(row.dataset.states ?? "[]");
      row.hidden = !(words.every((word) => text.includes(word)) && (state === "" || states.includes(state)));
    }
    const left = rows.filter((row) => !row.hidden).length;
    box.querySelector(".count").textContent = left === rows.length ? "" : `${left} of ${rows.length} rows`;
  }

  function ready(box) {
    const heads = [...box.querySelectorAll("thead th")];
    const tools = box.querySelector(".tools");
    const again = () => {
      const at = heads.findIndex((head) => head.getAttribute("aria-sort") !== "none");
      if (at >= 0) sort(box, at, heads[at].getAttribute("aria-sort") === "descending");
    };
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(box, column, descending);
      });
    });
    if (!tools) return;
    tools.hidden = box.querySelectorAll("tbody tr").length < 2;
    for (const control of tools.querySelectorAll(".filter, .states")) {
      control.addEventListener("input", () => filter(box));
    }
    tools.querySelector(".by")?.addEventListener("input", again);
  }

  function theme() {
    const root = document.documentElement;
    const button = document.getElementById("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    let chosen = null;
    const show = () => {
      const dark = chosen ?? system.matches;
      button.setAttribute("aria-pressed", String(dark));
      root.style.colorScheme = chosen === null ? "" : dark ? "dark" : "light";
    };
    button.addEventListener("click", () => {
      chosen = !(chosen ?? system.matches);
      show();
    });
    system.addEventListener("change", show);
    button.hidden = false;
    show();
  }

  for (const box of document.querySelectorAll(".table")) ready(box);
  theme();
})();
