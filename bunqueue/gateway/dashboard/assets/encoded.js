// Data that programs have encrypted or compressed before sending: shown as the text that comes with it.

const NOISE = /\$encoded:[A-Za-z0-9+/]*={0,2}/g;

/** Whether a value is encoded, so that only programs with its codec can read or change it. */
export const isEncoded = (value) => typeof value?.$encoded === "string" && "body" in value && "v" in value;

/** A text without its unreadable parts; any other value as it is. */
export const readable = (value) => (typeof value === "string" && value.includes("$encoded:") ? value.replace(NOISE, "") : value);

/** A replacer for JSON.stringify: encoded values become their text. */
export const inWords = (_, value) => (isEncoded(value) ? value.$encoded : readable(value));
