"""A module that nothing of the site uses: whoever imports it has let a job choose what is imported."""

raise SystemExit("this module was imported because a job named it")
