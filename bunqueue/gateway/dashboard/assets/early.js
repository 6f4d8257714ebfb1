// Before anything is drawn: light or dark, as in theme.js.  A module would come too late, and flash.
document.documentElement.dataset.theme = localStorage.getItem("bunqueue-theme")
  || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
