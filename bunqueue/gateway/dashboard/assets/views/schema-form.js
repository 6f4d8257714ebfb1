// Form fields made from a JSON Schema, and the data that they contain: that of a signal, or of a job of a function.
// Data other than a few plain values is typed as JSON.

import { Refused } from "../api.js";
import { readJson } from "../dialogs.js";

const MOST = 20; // fields of one form
const NOTHING = ["", "–"];
const KINDS = { boolean: "choice", integer: "text", number: "text", string: "text" };
const HINTS = { integer: "a whole number", number: "a number" };

/** The target of a reference in a schema. */
function resolved(schema, root, left = 20) {
  if (typeof schema?.$ref !== "string" || !left) return schema ?? {};
  const found = schema.$ref.replace(/^#\/?/, "").split("/").reduce((at, step) => at?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], root);
  return resolved(found, root, left - 1);
}

/** A schema for one plain value: {type, values, nullable, title, format}; null for any other schema. */
function plain(given, root) {
  const schema = resolved(given, root);
  const ways = (schema.anyOf ?? schema.oneOf ?? []).map((way) => resolved(way, root));
  if (ways.length) {
    const rest = ways.filter(({ type }) => type !== "null");
    const found = rest.length === 1 && rest.length < ways.length ? plain(rest[0], root) : null;
    return found && { ...found, nullable: true };
  }
  const values = schema.enum ?? (schema.const === undefined ? undefined : [schema.const]);
  const about = { title: schema.title, text: schema.description, format: schema.format, fallback: schema.default };
  if (values?.length && values.every((value) => ["string", "number", "boolean"].includes(typeof value))) return { ...about, type: "enum", values };
  return KINDS[schema.type] ? { ...about, type: schema.type } : null;
}

function field(name, label, kind, required) {
  const known = kind.values ?? (kind.type === "boolean" ? [true, false] : null);
  const value = kind.fallback === undefined || kind.fallback === null ? undefined : String(kind.fallback);
  const empty = !required || kind.nullable;
  const options = known && [...(empty ? [NOTHING] : []), ...known.map((each) => [String(each), each === true ? "Yes" : each === false ? "No" : String(each)])];
  return { name, label, value, kind: known ? "choice" : "text", options, required: required && !kind.nullable && kind.type !== "string",
    hint: [kind.text, HINTS[kind.type] ?? (kind.format ? `as a ${kind.format}` : null), empty ? "may be empty" : null].filter(Boolean).join(", ") || undefined };
}

/** One value as typed; undefined: nothing was typed. */
function read(written, kind, label, required) {
  if (written === undefined) return kind.nullable ? null : required && kind.type === "string" ? "" : undefined;
  if (kind.type === "boolean") return written === "true";
  if (kind.type === "enum") return kind.values.find((value) => String(value) === written);
  if (kind.type === "string") return written;
  const found = readJson(written, label);
  if (typeof found !== "number" && !/^-?\d+$/.test(String(found))) throw new Refused(`${label} is no number`, 0);
  return found;
}

/** {fields, data(values)} for a schema; null if the data has to be typed as JSON. */
export function formOf(schema) {
  if (!schema) return null;
  const kind = plain(schema, schema);
  if (kind) return { fields: [field("value", "Data", kind, true)], data: ({ value }) => read(value, kind, "data", true) ?? null };
  const object = resolved(schema, schema);
  const names = object.type === "object" ? Object.keys(object.properties ?? {}) : [];
  const kinds = names.map((name) => plain(object.properties[name], schema));
  if (!names.length || names.length > MOST || kinds.includes(null)) return null;
  const required = new Set(object.required);
  return { fields: names.map((name, place) => field(`of ${name}`, kinds[place].title ?? name, kinds[place], required.has(name))),
    data: (values) => Object.fromEntries(names.map((name, place) => [name, read(values[`of ${name}`], kinds[place], name, required.has(name))]).filter(([name, value]) => value !== undefined && (value !== null || required.has(name)))) };
}
