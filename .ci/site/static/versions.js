// Fills the selectors with the versions that lie beside this one. A version that lacks this page shows its start page.
addEventListener("DOMContentLoaded", async () => {
  // A page that is opened as a file may read no other: then the selectors have this version only.
  if (location.protocol === "file:") return;
  const selectors = document.querySelectorAll("select.versions");
  const own = new URL(document.documentElement.dataset.content_root, location.href);
  const current = selectors[0].value;
  const page = location.pathname.slice(own.pathname.length);
  const versions = await (await fetch(new URL("../versions.json", own))).json();
  for (const select of selectors) {
    select.replaceChildren(...versions.map((version) => new Option(version, version, version === current, version === current)));
    select.addEventListener("change", async () => {
      const version = new URL(`../${select.value}/`, own);
      const same = new URL(page, version);
      const { ok } = await fetch(same, { method: "HEAD" });
      location.href = ok ? same : new URL("README.html", version);
    });
  }
});
