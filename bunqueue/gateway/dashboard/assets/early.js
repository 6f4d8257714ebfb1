// Sets light or dark before anything is drawn, like theme.js.  A module would load too late, and the page would flash.
document.documentElement.dataset.theme = localStorage.getItem("bunqueue-theme")
  || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
