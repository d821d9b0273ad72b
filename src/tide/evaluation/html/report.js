"use strict";
// The button shows masked words, or masks them again.
const unmask = document.getElementById("unmask");
unmask.addEventListener("click", () => {
  const shown = unmask.getAttribute("aria-pressed") !== "true";
  unmask.setAttribute("aria-pressed", shown);
  for (const text of document.querySelectorAll(".masked")) text.hidden = shown;
  for (const text of document.querySelectorAll(".clear")) text.hidden = !shown;
});
