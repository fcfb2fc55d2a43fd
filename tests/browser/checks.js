// What `checks.py` asks a page, in the page. Nothing here changes the page.
globalThis.checks = (() => {
  const CONTROLS = "a[href], area[href], button, input:not([type=hidden]), select, textarea, summary, [contenteditable], [tabindex], [onclick], [role=button], [role=link]";
  // WCAG 2.2, success criterion 1.4.3.
  const MIN_CONTRAST = 4.5;
  let controls = [];

  const isShown = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;

  const describe = (element) => {
    const text = element.getAttribute("aria-label") ?? element.textContent ?? "";
    return `<${element.localName}> ${JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 60))}`;
  };

  // The target of a skip link has tabindex -1 and is no control.
  const isControl = (element) => isShown(element) && !element.disabled && !(element.matches("[tabindex='-1']") && !element.matches("a, button, input, select, textarea, summary"));

  const listControls = () => {
    controls = [...document.querySelectorAll(CONTROLS)].filter(isControl);
  };

  const isCovered = (element) => {
    // A link of two lines has a rectangle for each.
    const [box] = element.getClientRects();
    if (!box) return true;
    const x = Math.min(Math.max(box.left + box.width / 2, 0), innerWidth - 1);
    // Of a table that is higher than the window, the part in the window counts.
    const y = (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2;
    const top = document.elementFromPoint(x, y);
    return !top || !(element.contains(top) || [...(element.labels ?? [])].some((label) => label.contains(top)));
  };

  const describeFocus = () => {
    const element = document.activeElement;
    if (!element || element === document.body || element === document.documentElement) return null;
    const style = getComputedStyle(element);
    const hasOutline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 && !/^(transparent|rgba\(.*, 0\))$/.test(style.outlineColor);
    return { index: controls.indexOf(element), name: describe(element), hasOutline, covered: isCovered(element) };
  };

  const findOverflow = () => {
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const wide = [...document.body.querySelectorAll("*")].filter((element) => isShown(element) && element.getBoundingClientRect().right > root.clientWidth + 1);
    const names = wide.slice(0, 5).map(describe).join(", ");
    return [`the page is ${root.scrollWidth} pixels wide, the window ${root.clientWidth}: ${names}`];
  };

  // Text that a box hides, or that one has to scroll to.
  const findCut = () =>
    [...document.body.querySelectorAll("*")]
      .filter((element) => isShown(element) && !element.matches("input, select, .hidden") && getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1)
      .map((element) => `${describe(element)} is ${element.scrollWidth} pixels wide and shows ${element.clientWidth}`);

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  // Any colour that CSS can write, over a background, as three numbers from 0 to 255.
  const blend = (background, colour) => {
    canvas.fillStyle = background;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };

  const luminance = (colour) => {
    const [red, green, blue] = colour.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };

  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };

  const isOpaque = (colour) => blend("white", colour).join() === blend("black", colour).join();

  const paperBehind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.printColorAdjust === "exact" && isOpaque(style.backgroundColor)) return style.backgroundColor;
    }
    return "white";
  };

  const findPaleText = () => {
    const pale = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const element = texts.currentNode.parentElement;
      if (!texts.currentNode.data.trim() || !isShown(element) || element.matches("option, script, style")) continue;
      const paper = paperBehind(element);
      const style = getComputedStyle(element);
      const ink = element.closest("svg") ? style.fill : style.color;
      const ratio = contrast(blend(paper, ink), blend("white", paper));
      if (ratio < MIN_CONTRAST) pale.push(`on paper ${describe(element)} has a contrast of ${ratio.toFixed(1)}`);
    }
    return pale;
  };

  // Comparing the colours of a thousand texts takes longer than all other rules. Later rows have the colours of the first.
  const LATER_ROWS = "tbody tr:nth-child(n+13) { display: none; }";

  const withFirstRows = async (run) => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(LATER_ROWS);
    document.adoptedStyleSheets.push(sheet);
    try {
      return await run();
    } finally {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet);
    }
  };

  // No rule that runs needs `preload`, by which axe-core fetches styles and media again.
  const options = { resultTypes: ["violations"], preload: false };

  const runContrast = async () => (await withFirstRows(() => axe.run(document, { ...options, runOnly: ["color-contrast"] }))).violations;

  const runAxe = async () => {
    const others = await axe.run(document, { ...options, rules: { "color-contrast": { enabled: false } } });
    return [...others.violations, ...(await runContrast())];
  };

  return { runAxe, runContrast, listControls, nameControls: () => controls.map(describe), describeFocus, findOverflow, findCut, findPaleText };
})();
0;
