// Draws the diagrams in the colours of the theme, and again when that is switched.
addEventListener("DOMContentLoaded", () => {
  const root = document.documentElement;
  const headings = [...document.querySelectorAll("h1, h2, h3, h4")];
  const isBefore = (heading, element) => heading.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
  const diagrams = [...document.querySelectorAll("pre.mermaid")].map((source) => {
    const heading = headings.findLast((each) => isBefore(each, source));
    const picture = document.createElement("div");
    picture.className = "mermaid";
    source.replaceWith(picture);
    return { picture, text: source.textContent, label: `Diagram: ${heading.firstChild.textContent}` };
  });
  const draw = async () => {
    const theme = root.dataset.theme === "dark" ? "dark" : "neutral";
    // The dark theme's own grey behind labels leaves them too little contrast.
    const themeVariables = theme === "dark" ? { edgeLabelBackground: "#1f2020" } : {};
    mermaid.initialize({ startOnLoad: false, theme, themeVariables, flowchart: { wrappingWidth: 300 } });
    for (const [number, { picture, text, label }] of diagrams.entries()) {
      picture.innerHTML = (await mermaid.render(`diagram-${number}`, text)).svg;
      picture.firstElementChild.setAttribute("aria-label", label);
    }
    root.dataset.diagrams = theme;
  };
  let drawn = draw();
  new MutationObserver(() => { drawn = drawn.then(draw); }).observe(root, { attributeFilter: ["data-theme"] });
});
