// Follows Airflow's theme, keeps the page fresh, copies a text, and opens Airflow's own pages out of its frame.
(() => {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    let chosen = null;
    try { chosen = localStorage.getItem("theme"); } catch { /* storage is blocked: follow the system */ }
    root.dataset.theme = chosen === "dark" || chosen === "light" ? chosen : dark.matches ? "dark" : "light";
  };
  theme();
  dark.addEventListener("change", theme);
  addEventListener("storage", theme);

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("button[data-copy]");
    if (copy) {
      const text = copy.parentElement.querySelector("pre");
      getSelection().selectAllChildren(text);
      navigator.clipboard?.writeText(text.textContent).then(() => { copy.textContent = "Copied"; }, () => {});
      return;
    }
    // Airflow's frame may not navigate its parent, so the parent's own link is clicked.
    const link = event.target.closest("a[target=_top]");
    if (!link || window.top === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
    try {
      const outer = window.top.document.createElement("a");
      outer.href = link.href;
      event.preventDefault();
      outer.click();
    } catch { /* framed by another origin: the browser decides */ }
  });

  const busy = () => document.hidden || document.activeElement?.matches("input") || String(getSelection()) !== "";
  const refresh = async () => {
    const main = document.querySelector("main");
    if (!main?.dataset.refresh || busy()) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok || busy()) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (!fresh) return;
    for (const open of main.querySelectorAll("details[open][id]")) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    main.replaceWith(fresh);
  };
  setInterval(() => refresh().catch(() => {}), 15000);
})();
