// The actions for a workflow: signal, cancel, retry from a step, undo, and continue an undo that is stuck.

import { call, may } from "../../api.js";
import { ask, attempt, confirm, readJson, toast } from "../../dialogs.js";
import { button } from "../../dom.js";
import { plural } from "../../format.js";
import { write } from "../../numbers.js";
import { formOf } from "../schema-form.js";
import { undoneBy } from "./shape.js";

const ENDED = ["completed", "failed", "cancelled", "stuck"];
const MOST = 200; // steps to choose from

/** Whether a workflow in this state may restart from a step. */
export const canRetryFrom = (state) => may("RetryWorkflow") && state !== "active";
export const hasEnded = (state) => ENDED.includes(state);

/** The buttons of a workflow in addition to a job's; `now` returns {job, view} at the time of a click. */
export function workflowButtons({ job, view }, now, refresh) {
  const { state, id } = job;
  const undoable = ENDED.includes(state) && view.undoable && !view.undone && !view.undoing;
  return [
    ENDED.includes(state) || !may("SendSignal") ? null : button("Signal", () => signal(id, { signal: now().view.waits[0]?.signal }, refresh)),
    canRetryFrom(state) && view.steps.length ? button("Retry from a step", () => chooseStep(id, now().view.steps, refresh)) : null,
    undoable && may("UndoWorkflow") ? button("Undo", () => undoAll(now(), refresh), "bad") : null,
    ENDED.includes(state) || !may("Cancel") ? null : button("Cancel", () => cancel(now(), refresh), "bad"),
  ];
}

/** Ask for the data of a signal and send it. A wait that declares its data has a form of its own. */
export function signal(id, { signal: name, schema }, refresh) {
  const form = formOf(schema), area = { name: "data", label: "Data, as JSON", kind: "area", value: "null", hint: "what wait_for gives" };
  const fields = form ? form.fields : [{ name: "name", label: "Name", value: name, required: true }, area];
  const body = form ? "The oldest wait for this name takes it." : "The oldest wait for this name takes it. If there is none, it is kept until there is one.";
  return ask({ title: name ? `Signal ${name}` : "Send a signal", action: "Send", body, fields, submit: async (values) => {
    const called = form ? name : values.name;
    const { data } = await call("SendSignal", { id, name: called, data: (form ? form.data(values) : readJson(values.data, "data")) ?? null });
    const others = data.waiting?.length ? `. It waits for ${data.waiting.join(", ")}` : "";
    toast(data.delivered ? `The workflow took the signal ${called}` : `The workflow does not wait for ${called} yet: the signal is kept${others}`);
    refresh();
  } });
}

/** Remove a signal that no wait has taken. */
export function drop(id, { name, number }, refresh) {
  return confirm({ title: `Drop the signal ${name}?`, body: "Its data is lost, and no wait gets it.", action: "Drop it", submit: async () => {
    await call("DropSignal", { id, number });
    toast("The signal is gone");
    refresh();
  } });
}

export function retryFrom(id, step, steps, refresh) {
  const after = steps.filter(({ number }) => number > step.number).length;
  return confirm({ title: `Retry from ${step.name}?`, action: "Retry", body: `The result of this step is forgotten${after ? `, with ${plural(after, "step")} recorded after it` : ""}. Jobs that these have started are cancelled. What was recorded before keeps its results.`,
    submit: async () => {
      await call("RetryWorkflow", { id, step: step.name });
      toast(`It runs again from ${step.name}`);
      refresh();
    } });
}

function chooseStep(id, steps, refresh) {
  const some = steps.filter(({ kind }) => kind !== "undo").slice(-MOST).reverse();
  return ask({ title: "Retry from a step", action: "Retry", body: "The result of this step is forgotten, and so is all that was recorded after it. Jobs that it has started are cancelled.", fields: [
    { name: "step", label: "Step", kind: "choice", options: some.map(({ name, status }) => [name, `${name} (${status})`]) },
  ], submit: async ({ step }) => {
    await call("RetryWorkflow", { id, step });
    toast(`It runs again from ${step}`);
    refresh();
  } });
}

function cancel({ job, view }, refresh) {
  return ask({ title: `Cancel ${job.name}?`, danger: true, action: "Cancel the workflow", body: view.undoable ? "Its steps that can be undone are undone, the last one first, and then it ends as cancelled. Jobs that it has started are cancelled, too." : "It ends as cancelled. Jobs that it has started are cancelled, too.",
    fields: [{ name: "reason", label: "Reason", hint: "shown with the workflow" }],
    submit: async ({ reason }) => {
      const { running } = await call("Cancel", { id: job.id, running: true, reason });
      toast(running ? "It is being stopped" : "It is cancelled");
      refresh();
    } });
}

function undoAll({ job, view }, refresh) {
  const some = view.steps.filter((step) => step.undo && step.status === "completed").length;
  return confirm({ title: `Undo ${job.name}?`, action: "Undo it", body: `${plural(some, "step")} will be undone, the last one first. The workflow ends as failed.`, submit: async () => {
    await call("UndoWorkflow", { id: job.id, action: "start" });
    toast("It is being undone");
    refresh();
  } });
}

/** The steps that a stuck workflow has not undone, the one that failed first. */
export function notUndone(view) {
  const undos = new Map(view.steps.filter(({ kind }) => kind === "undo").map((step) => [undoneBy(step), step]));
  return view.steps.filter((step) => step.undo && step.status === "completed" && !["completed", "skipped"].includes(undos.get(step.name)?.status))
    .map((step) => ({ step, undo: undos.get(step.name) })).sort((one, other) => Number(Boolean(other.undo)) - Number(Boolean(one.undo)) || other.step.number - one.step.number);
}

/** The options of an operator for a step that could not be undone. */
export function stuckButtons({ id, queue }, { step }, refresh) {
  if (!may("UndoWorkflow")) return [];
  const act = async (action, fields, done) => {
    if (await attempt(() => call("UndoWorkflow", { id, action, ...fields }), done)) refresh();
  };
  return [
    button("Try again", () => act("retry", {}, "The undo is tried again"), "small primary"),
    button("Edit", () => edit(id, queue, step, refresh), "small"),
    button("Skip", () => confirm({ title: `Skip the undo of ${step.name}?`, body: "It counts as undone, though it is not, and the undo goes on with the step before it.", action: "Skip", submit: async () => {
      await call("UndoWorkflow", { id, action: "skip", step: step.name });
      toast(`${step.name} is not undone`);
      refresh();
    } }), "small bad"),
  ];
}

async function edit(id, queue, step, refresh) {
  let value;
  await attempt(async () => { value = await resultOf(queue, id, step.name); });
  return ask({ title: `Undo ${step.name} with other data`, action: "Save and try again", body: "The undo is called with this instead of the step's result.", fields: [
    { name: "data", label: "As JSON", kind: "area", rows: 10, value: write(value ?? null, 2) },
  ], submit: async ({ data }) => {
    await call("UndoWorkflow", { id, action: "edit", step: step.name, data: readJson(data, "data") ?? null });
    toast("The undo is tried again");
    refresh();
  } });
}

/** The result of a step. */
async function resultOf(queue, id, name) {
  return (await stored(queue, id, name))?.result;
}

/** A step with its result and its cursor. */
export async function stored(queue, id, name) {
  const { data } = await call("GetSteps", { queue, id, names: [name] });
  return data.steps[0];
}
