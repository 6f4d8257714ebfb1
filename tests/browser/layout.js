// What is wrong with the texts of a page, as sentences.  A text that ends in "…" is whole in the title of its element.
() => {
  const problems = new Set();
  const seen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && !element.closest(".skip, .off, [inert]");
  const name = (text) => `"${text.trim().slice(0, 60)}"`;
  const scrolls = (style, side) => ["auto", "scroll"].includes(style[side]);
  const lines = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || !seen(element) || element.closest("option, script, style, noscript, svg title")) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;

    // Outside of its box, or of the window?
    for (let around = element; around && around !== document.body; around = around.parentElement) {
      const style = getComputedStyle(around);
      if (scrolls(style, "overflowX") || style.overflowX === "hidden") {
        const edge = around.getBoundingClientRect();
        const isCut = box.right > edge.right + 1 || box.left < edge.left - 1;
        if (isCut && style.overflowX === "hidden") {
          const told = style.textOverflow === "ellipsis" && around.closest("td.preview, [title]");
          if (!told && !around.querySelector("[title]")) problems.add(`${name(text.data)} is cut`);
        } else if (isCut && around.matches("nav")) problems.add(`${name(text.data)} is cut in a list of links`);
        break;
      }
    }
    const frame = element.closest("g.node")?.querySelector(".shape")?.getBoundingClientRect();
    if (frame && (box.right > frame.right - 2 || box.left < frame.left)) problems.add(`${name(text.data)} runs out of its box`);

    // A word in two lines, though it would fit into one?
    const words = text.data.matchAll(/[\p{L}\p{N}]+/gu);
    if (element.closest("td.name, th, h1, h2, dt, dd, .badge, .button, label, nav")) {
      for (const { 0: word, index } of words) {
        if (word.length > 14) continue;
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) problems.add(`the word ${name(word)} of ${name(text.data)} is broken`);
      }
      range.selectNodeContents(text);
    }
    for (const { left, right, top, bottom } of range.getClientRects()) lines.push({ left, right, top, bottom, text, element });
  }

  // One above another?
  lines.sort((one, other) => one.top - other.top);
  lines.forEach((one, place) => {
    for (let next = place + 1; next < lines.length && lines[next].top < one.bottom - 3; next++) {
      const other = lines[next];
      const apart = one.left > other.right - 2 || other.left > one.right - 2 || other.bottom < one.top + 3;
      const layered = one.text === other.text || one.element.closest("header, #toasts, dialog, .menu") !== other.element.closest("header, #toasts, dialog, .menu");
      if (!apart && !layered && !hidden(one) && !hidden(other)) problems.add(`${name(one.text.data)} and ${name(other.text.data)} overlap`);
    }
  });

  /** Whether it is the part of a text that is cut, or scrolled out of sight. */
  function hidden({ left, right, top, bottom, element }) {
    for (let around = element; around && around !== document.body; around = around.parentElement) {
      const style = getComputedStyle(around);
      if (style.overflowX === "visible") continue;
      const edge = around.getBoundingClientRect();
      if (right > edge.right + 1 || left < edge.left - 1 || bottom > edge.bottom + 1 || top < edge.top - 1) return true;
    }
    return false;
  }

  for (const field of document.querySelectorAll("input[placeholder]")) {
    if (!seen(field) || field.value) continue;
    const pen = document.createElement("canvas").getContext("2d");
    const style = getComputedStyle(field);
    pen.font = style.font;
    const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (pen.measureText(field.placeholder).width > room + 1) problems.add(`the hint ${name(field.placeholder)} is cut`);
  }
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) problems.add(`the page is ${wide} pixels wider than its window`);
  return [...problems];
}
