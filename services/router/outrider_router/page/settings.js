// The settings of the next request: which model, how it samples, how it speculates.

import { byId, el, fill } from "./shared/dom.js";

const fields = Object.fromEntries(
  [
    ...["model", "system", "temperature", "max-tokens"],
    ...["mode", "cap", "drafter", "prediction"],
  ].map((id) => [id, byId(id)]),
);
let models = [];

/** Shows what can be chosen now; what was chosen stays so where it is still there. */
export function offer(served) {
  models = served;
  const { model } = fields;
  const options = served.map(({ id }) => el("option", { value: id }, id));
  keepingChoice(model, options);
  model.disabled = served.length === 0;
  adapt();
}

/** The name of the chosen model, "" while there is none. */
export function chosenModel() {
  return fields.model.value;
}

/** Words for the first field that holds no number in its bounds; null where all do. */
export function fault() {
  const wrong = Object.values(fields).find((field) => !field.disabled && !field.checkValidity());
  if (wrong === undefined) return null;
  wrong.focus();
  return `${wrong.labels[0].textContent}: ${wrong.validationMessage}`;
}

/** The request that follows from the settings for a conversation of { role, content }. */
export function requestFor(turns) {
  const system = fields.system.value.trim();
  const prediction = fields.prediction.value;
  return {
    model: fields.model.value,
    messages: system ? [{ role: "system", content: system }, ...turns] : turns,
    temperature: numberIn(fields.temperature),
    max_completion_tokens: numberIn(fields["max-tokens"]),
    // One text, as the model writes it: so every token of it can be shown.
    separate_reasoning: false,
    speculation: speculation(),
    ...(prediction && !fields.prediction.disabled
      ? { prediction: { type: "content", content: prediction } }
      : {}),
  };
}

function speculation() {
  const { mode, cap, drafter } = fields;
  if (mode.value === "off") return { enabled: false };
  const wishes = {
    ...(mode.value === "capped" ? { max_draft: Number(cap.value) } : {}),
    ...(drafter.value ? { drafter: drafter.value } : {}),
  };
  return Object.keys(wishes).length ? wishes : undefined;
}

function numberIn(field) {
  return field.value === "" ? undefined : Number(field.value);
}

/** Lets only that be set which the chosen model has and which has an effect. */
function adapt() {
  const { model, mode, cap, drafter, prediction } = fields;
  const offered = models.find(({ id }) => id === model.value)?.speculation;
  const names = offered?.drafters ?? [];
  keepingChoice(drafter, [
    el("option", { value: "" }, "the worker’s choice"),
    ...names.map((name) => el("option", { value: name }, name)),
  ]);
  cap.max = offered?.max_draft || "";
  cap.disabled = cap.parentElement.hidden = mode.value !== "capped";
  drafter.disabled = mode.value === "off";
  prediction.disabled = mode.value === "off" || !offered?.prediction;
}

function keepingChoice(select, options) {
  const chosen = select.value;
  fill(select, ...options);
  if (options.some(({ value }) => value === chosen)) select.value = chosen;
}

fields.model.addEventListener("change", adapt);
fields.mode.addEventListener("change", adapt);
