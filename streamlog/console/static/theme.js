// Sets light or dark before the first paint: the reader's choice, else the system's.
try {
  const chosen = localStorage.getItem("streamlog-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (_) { /* Storage may be forbidden: the system's colours are used. */ }
