// JSON with exact whole numbers.  JavaScript's are exact only up to 2^53, and other languages have larger ones: a wrong
// number on the page would mislead, and a wrong number that is saved would destroy data.

const MARK = `whole:${Math.random().toString(36).slice(2)}:`; // no real text begins like this
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");
const LONG = /(?<![\d.])-?\d{16,}(?![\d.eE])/g;

/** A whole number that JavaScript cannot hold. */
class Whole {
  constructor(digits) { this.digits = digits; }
  toJSON() { return MARK + this.digits; }
  toString() { return this.digits; }
}

/** Like JSON.parse.  Throws SyntaxError for anything else. */
export function parse(source) {
  if (!/\d{16}/.test(source)) return JSON.parse(source);
  return JSON.parse(marked(source), (_, value) =>
    (typeof value === "string" && value.startsWith(MARK) ? new Whole(value.slice(MARK.length)) : value));
}

/** Like JSON.stringify. */
export const write = (value, indent, replacer = null) => JSON.stringify(value, replacer, indent)?.replace(MARKED, "$1");

/** The source with quotes around long numbers.  Texts are skipped by a loop: they may be megabytes, too long for a
 * regular expression with lookbehind. */
function marked(source) {
  let done = "", at = 0;
  while (at < source.length) {
    const open = source.indexOf('"', at);
    done += source.slice(at, open < 0 ? source.length : open).replace(LONG, quoted);
    if (open < 0) break;
    const end = endOfText(source, open);
    done += source.slice(open, end);
    at = end;
  }
  return done;
}

const quoted = (digits) => (Number.isSafeInteger(Number(digits)) ? digits : `"${MARK}${digits}"`);

function endOfText(source, open) {
  for (let close = source.indexOf('"', open + 1); close >= 0; close = source.indexOf('"', close + 1)) {
    let slashes = 0;
    while (source[close - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return close + 1;
  }
  return source.length;
}
