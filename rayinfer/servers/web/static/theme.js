// The theme that was chosen, before anything is painted: not a module, which would wait for the page.
try { if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme"); } catch { /* this browser keeps nothing */ }
