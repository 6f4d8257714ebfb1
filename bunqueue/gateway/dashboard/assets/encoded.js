// What programs have encrypted or compressed before they sent it: shown as the words that it brings along.

const NOISE = /\$encoded:[A-Za-z0-9+/]*={0,2}/g;

/** Whether a value is encoded, so that only programs with its codec can read or change it. */
export const isEncoded = (value) => typeof value?.$encoded === "string" && "body" in value && "v" in value;

/** A text without what nobody can read; any other value as it is. */
export const readable = (value) => (typeof value === "string" && value.includes("$encoded:") ? value.replace(NOISE, "") : value);

/** A value as JSON.stringify's second argument wants to have it replaced: what is encoded becomes its words. */
export const inWords = (_, value) => (isEncoded(value) ? value.$encoded : readable(value));
