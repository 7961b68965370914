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

  const copied = (text) => {
    getSelection().selectAllChildren(text);
    // Without TLS a browser offers no clipboard but the old command.
    return navigator.clipboard?.writeText(text.textContent) ?? Promise.resolve(document.execCommand("copy"));
  };
  // Airflow's frame may not navigate its parent, so the parent's own link is clicked.
  const leave = (link) => {
    let outer = link.cloneNode();
    try { outer = window.top.document.importNode(outer); } catch { /* framed by another origin: the browser decides */ }
    delete outer.dataset.copy;
    outer.click();
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button) {
      copied(button.parentElement.querySelector("pre")).then(() => { button.textContent = "Copied"; }, () => {});
      return;
    }
    const link = event.target.closest("a[target=_top]");
    if (!link) return;
    const text = "copy" in link.dataset ? copied(link.closest("details").querySelector("pre")).catch(() => {}) : null;
    if (event.ctrlKey || event.metaKey || event.shiftKey || (!text && window.top === window)) return;
    event.preventDefault();
    // A browser that asks whether the page may copy must not hold the link up.
    Promise.race([text, new Promise((done) => setTimeout(done, 1000))]).then(() => leave(link));
  });

  const busy = () => document.hidden || document.activeElement?.matches("input, select") || String(getSelection()) !== "";
  const refresh = async () => {
    const main = document.querySelector("main");
    if (!main?.dataset.refresh || busy()) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok || busy()) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (!fresh) return;
    for (const open of main.querySelectorAll("details[open][id]")) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    const key = (it) => `${it.tagName} ${it.getAttribute("href")} ${it.textContent}`;
    const focused = main.contains(document.activeElement) ? key(document.activeElement) : null;
    main.replaceWith(fresh);
    if (focused) [...fresh.querySelectorAll("a, button, summary, [tabindex]")].find((it) => key(it) === focused)?.focus({ preventScroll: true });
  };
  setInterval(() => refresh().catch(() => {}), 15000);
})();
