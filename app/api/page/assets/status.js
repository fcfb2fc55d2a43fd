"use strict";
// Fetches this page again now and then, and puts the new content in place of the old.
(() => {
  const summary = document.getElementById("summary");
  const state = document.getElementById("refresh-state");
  const button = document.getElementById("refresh-toggle");
  let paused = false;
  let timer = 0;

  const CONTROLS = "a[href], button, input, select, summary, [tabindex]";
  const nameOf = (element) => [element.localName, element.id, element.getAttribute("href"), element.getAttribute("aria-label")].join("\n");
  // One address may be linked several times: the same one of them gets the focus again.
  const likes = (main, element) => [main, ...main.querySelectorAll(CONTROLS)].filter((other) => nameOf(other) === nameOf(element));

  function show(next) {
    const main = document.getElementById("main");
    const focused = main.contains(document.activeElement) ? document.activeElement : null;
    const position = focused ? likes(main, focused).indexOf(focused) : 0;
    const open = [...main.querySelectorAll("details[open][id]")].map((details) => details.id);
    const fresh = document.adoptNode(next.getElementById("main"));
    for (const id of open) fresh.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
    const scrolled = [...main.querySelectorAll(".scroll")].map((table) => [likes(fresh, table)[0], table.scrollLeft]);
    main.replaceWith(fresh);
    for (const [table, left] of scrolled) if (table) table.scrollLeft = left;
    if (focused) {
      const same = likes(fresh, focused);
      (same[position] ?? same.at(-1))?.focus({ preventScroll: true });
    }
    // A screen reader reads the summary, and only when it has changed.
    const text = next.getElementById("summary").textContent;
    if (summary.textContent !== text) summary.textContent = text;
  }

  async function refresh() {
    const busy = document.activeElement?.matches("input, select");
    if (!paused && !document.hidden && !busy) {
      try {
        const response = await fetch(location.href, { cache: "no-store", redirect: "error", signal: AbortSignal.timeout(9000) });
        const next = new DOMParser().parseFromString(await response.text(), "text/html");
        if (!next.getElementById("main")) throw new Error("no page");
        show(next);
        state.textContent = "";
      } catch {
        state.textContent = "No answer: these numbers are old. ";
      }
    }
    schedule();
  }

  function schedule() {
    const seconds = Number(document.getElementById("main").dataset.refresh) || 10;
    clearTimeout(timer);
    timer = setTimeout(refresh, seconds * 1000);
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume refresh" : "Pause refresh";
    if (!paused) refresh();
  });
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  schedule();
})();
