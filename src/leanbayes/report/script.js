"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const settings = () => new URLSearchParams(location.hash.slice(1));
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  // Sorting: rows without a value stay last in both directions.
  const table = document.getElementById("comparison-table");
  const sort = (key, order, announce) => {
    const heads = all("thead th", table);
    const column = heads.findIndex((head) => head.dataset.key === key);
    if (column < 0) return;
    const sign = order === "descending" ? -1 : 1;
    const valueOf = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => {
      const left = valueOf(a), right = valueOf(b);
      if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
      return sign * (key === "method" ? left.localeCompare(right) : Number(left) - Number(right));
    };
    const body = table.tBodies[0];
    body.append(...Array.from(body.rows).sort(compare));
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === column ? order : "none"));
    const name = heads[column].querySelector("button").firstChild.textContent;
    if (announce) document.getElementById("sorted").textContent = `Sorted by ${name}, ${order}`;
  };
  if (table) {
    table.tHead.addEventListener("click", (event) => {
      const head = event.target.closest("button")?.closest("th");
      if (!head) return;
      const { key, first } = head.dataset;
      const other = first === "ascending" ? "descending" : "ascending";
      sort(key, head.getAttribute("aria-sort") === first ? other : first, true);
    });
  }

  // Switches: a radio button or a list shows one panel of its group.
  const show = (group, key) => {
    for (const panel of all("[data-panel]")) {
      if (panel.dataset.panel === group) panel.hidden = panel.dataset.key !== key;
    }
  };
  for (const control of all("[data-switch]")) {
    const apply = () => show(control.dataset.switch, control.value);
    control.addEventListener("change", apply);
    if (control.type !== "radio" || control.checked) apply();
  }

  // Highlighting one method in the plots that show all of them.
  for (const control of all("[data-highlight]")) {
    control.addEventListener("change", () => {
      for (const series of all(".variant .series")) {
        series.classList.toggle("dimmed", control.value !== "" && series.dataset.method !== control.value);
      }
      for (const other of all("[data-highlight]")) other.value = control.value;
    });
  }

  const theme = document.getElementById("theme");
  const dress = (value) => {
    if (value === "light" || value === "dark") root.dataset.theme = value;
    else delete root.dataset.theme;
    theme.value = root.dataset.theme ?? "";
  };
  theme.addEventListener("change", () => dress(theme.value));

  // The address may carry settings, as in #sort=nll:desc&theme=dark.
  const obey = () => {
    const wanted = settings();
    const [key, order] = (wanted.get("sort") ?? "").split(":");
    if (table && key) sort(key, order === "desc" ? "descending" : "ascending", false);
    if (wanted.has("theme")) dress(wanted.get("theme"));
  };
  addEventListener("hashchange", obey);
  obey();
  root.dataset.ready = "true";
})();
