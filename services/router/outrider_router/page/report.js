// The numbers of one answer: a line of them while it comes, and the request's report at its end.

import { el, setStyleNumber } from "./shared/dom.js";

const MOST_STEPS_SHOWN = 240;

/** The line under an answer; `tokensPerSecond` and `firstTokenMs` may still be unknown. */
export function factsOf(answer, firstTokenMs, tokensPerSecond) {
  const { tokens, accepted } = answer;
  const share = tokens ? ` (${percent(accepted / tokens)})` : "";
  return [
    fact(tokens, tokens === 1 ? "token" : "tokens"),
    fact(`${accepted}${share}`, "drafted"),
    firstTokenMs === null ? null : fact(`${rounded(firstTokenMs)} ms`, "to the first token"),
    tokensPerSecond === null ? null : fact(rounded(tokensPerSecond), "tokens/s"),
  ];
}

function fact(value, name) {
  return el("span", { class: "fact" }, el("b", {}, value), ` ${name}`);
}

/** The request's report as the router gives it; null where it gives none. */
export function reportOf(metrics, usage) {
  if (!metrics) return null;
  const told = metrics.speculative_decoding;
  return el(
    "details",
    { class: "report" },
    el("summary", {}, "Report"),
    el("dl", { class: "numbers" }, numbers(metrics, told, usage).map(numberOf)),
    told?.num_spec_steps ? chartsOf(told) : el("p", { class: "hint" }, "Nothing was drafted."),
  );
}

function numbers(metrics, told, usage) {
  const ms = (value) => (value === null ? "–" : `${rounded(value)} ms`);
  const plain = (value) => (value === null ? "–" : rounded(value));
  const always = [
    ["Prompt tokens", usage.prompt_tokens],
    ["From the cache", usage.prompt_tokens_details.cached_tokens],
    ["Answer tokens", usage.completion_tokens],
    ["In line", ms(metrics.queue_time_ms)],
    ["First token", ms(metrics.time_to_first_token_ms)],
    ["Between tokens", ms(metrics.mean_itl_ms)],
    ["Tokens/s", plain(metrics.tokens_per_second)],
  ];
  if (!told?.num_spec_steps) return always;
  const { num_accepted_draft_tokens: held, num_draft_tokens: drafted } = told;
  return [
    ...always,
    ["Steps with drafts", told.num_spec_steps],
    ["Drafts that held", `${held} of ${drafted} (${percent(told.draft_acceptance_rate)})`],
    ["Tokens per step", rounded(told.mean_acceptance_length)],
    ...predicted(usage.completion_tokens_details),
  ];
}

function predicted({ accepted_prediction_tokens: held, rejected_prediction_tokens: refused }) {
  return held + refused ? [["From the prediction", `${held} of ${held + refused}`]] : [];
}

function numberOf([name, value]) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value));
}

function chartsOf(told) {
  return el("div", { class: "charts" }, histogramOf(told.acceptance_histogram), stepsOf(told));
}

/** Steps by how many drafts they accepted; lengths that no step had are left out at the end. */
function histogramOf(histogram) {
  const used = histogram.slice(0, histogram.findLastIndex((count) => count > 0) + 1);
  const most = Math.max(...used);
  const rows = used.map((count, accepted) => {
    const bar = el("span", { class: "bar-line" });
    setStyleNumber(bar, "--share", count / most);
    const number = el("span", { class: "number" }, count);
    return el("tr", {}, el("th", { scope: "row" }, accepted), el("td", {}, number, bar));
  });
  const head = ["Held", "Steps"].map((name) => el("th", { scope: "col" }, name));
  return el(
    "table",
    { class: "histogram" },
    el("caption", {}, "Drafts that held, per step"),
    el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, rows),
  );
}

/** A column per step: as high as what was drafted, filled as far as it held. */
function stepsOf(told) {
  const { per_step_drafted: drafted, per_step_accepted: accepted } = told;
  const shown = drafted.slice(0, MOST_STEPS_SHOWN);
  const columns = shown.map((length, step) => {
    const column = el("i", {});
    setStyleNumber(column, "--drafted", length);
    setStyleNumber(column, "--accepted", accepted[step]);
    return column;
  });
  const first = drafted.length > shown.length ? `the first ${shown.length} of ` : "";
  const caption = `Drafted and held, step by step (${first}${drafted.length})`;
  return el(
    "figure",
    {},
    el("figcaption", {}, caption),
    el("div", { class: "steps", "aria-hidden": "true" }, columns),
  );
}

function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** Two digits that say something: 0.42, 4.2, 42, 421. */
function rounded(value) {
  if (value >= 100) return String(Math.round(value));
  return String(Number(value.toPrecision(2)));
}
