// JSON whose whole numbers stay as they are.  JavaScript's own are exact up to 2^53 only, and other languages have
// larger ones: shown wrong they would mislead, saved wrong they would destroy.

const MARK = `whole:${Math.random().toString(36).slice(2)}:`; // begins no text of anybody's
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");
const LONG = /(?<![\d.])-?\d{16,}(?![\d.eE])/g;

/** A whole number that JavaScript cannot hold. */
class Whole {
  constructor(digits) { this.digits = digits; }
  toJSON() { return MARK + this.digits; }
  toString() { return this.digits; }
}

/** As JSON.parse; SyntaxError for anything else. */
export function parse(source) {
  if (!/\d{16}/.test(source)) return JSON.parse(source);
  return JSON.parse(marked(source), (_, value) =>
    (typeof value === "string" && value.startsWith(MARK) ? new Whole(value.slice(MARK.length)) : value));
}

/** As JSON.stringify. */
export const write = (value, indent, replacer = null) => JSON.stringify(value, replacer, indent)?.replace(MARKED, "$1");

/** The source with quotes around long numbers.  Texts are stepped over by hand: they may be megabytes, which no
 * expression may look back through. */
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
