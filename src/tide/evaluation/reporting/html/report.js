"use strict";
// The button shows masked words, or masks them again.
const unmask = document.getElementById("unmask");
unmask?.addEventListener("click", () => {
  const shown = unmask.getAttribute("aria-pressed") !== "true";
  unmask.setAttribute("aria-pressed", shown);
  for (const text of document.querySelectorAll(".masked")) text.hidden = shown;
  for (const text of document.querySelectorAll(".clear")) text.hidden = !shown;
});
// Show a hint to scroll above each table that is wider than the screen.
const cut = new ResizeObserver((changed) => {
  for (const { target } of changed) {
    target.previousElementSibling.hidden = target.scrollWidth <= target.clientWidth;
  }
});
for (const table of document.querySelectorAll(".wide")) cut.observe(table);

// A click on a heading sorts by that column, a second click reverses the order; "-" stays last.
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, number) => {
    head.querySelector("button").addEventListener("click", () => {
      const way = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way);
      const sign = way === "ascending" ? 1 : -1;
      const value = (row) => row.cells[number].dataset.value;
      const compared = (one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === "" || b === "") return (a === "") - (b === "");
        const difference = Number(a) - Number(b);
        return sign * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(compared));
    });
  });
}
