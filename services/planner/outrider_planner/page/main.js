// The planner's live page: asks /v1 what every deployment does, and shows one worker of one in full.

import { call } from "./shared/api.js";
import { byId, el, fill, set } from "./shared/dom.js";
import { keyForm } from "./shared/key_form.js";
import { showAcceptance, showGuard, showMeasured } from "./evidence.js";
import { busiest, mainDrafter, marksOf, nameOf, STATE_KINDS, WorkerTable } from "./fleet.js";
import { HeatMap } from "./heatmap.js";
import { PolicyDialog } from "./policy.js";
import { poll } from "./poll.js";
import { showShadows, showWhy, spoken } from "./why.js";
import { age, counted, times } from "./words.js";

const MOST_SAID = 4;
const PREDICTED = ["predicted rate", el("br"), "against off"];
const UNVERIFIED = ["no draft was", el("br"), "verified yet"];

// What is looked at. Kept in the address, so that a reload or a link shows the same.
const asked = new URLSearchParams(location.search);
const view = Object.fromEntries(
  ["deployment", "worker", "drafter"].map((name) => [name, asked.get(name)]),
);
let cell = null;
let sayCell = false;
let latest = null;
let heard = { worker: null, news: "" };
let first = { worker: null, drafter: null };

const keys = keyForm("Planner's token (OUTRIDER_TOKEN)", () => poller.now());
byId("key-place").append(keys.element);
const workers = new WorkerTable(
  { table: byId("workers"), filter: byId("filter"), more: byId("workers-more") },
  (name) => look({ worker: name }),
);
const map = new HeatMap(byId("map"), (n, d) => lookAt({ n, d }));
const dialog = new PolicyDialog((deployment, policy) => {
  announce(`${deployment} is planned by ${policy} now`);
  poller.now();
});
const poller = poll(turn, outcome);

byId("deployment").addEventListener("change", (event) =>
  look({ deployment: event.target.value, worker: null, drafter: null }),
);
byId("drafter").addEventListener("change", (event) => look({ drafter: event.target.value }));
byId("present").addEventListener("click", () => {
  lookAt(null);
  byId("plan").focus();
});
byId("switch").addEventListener("click", () => dialog.open(latest));
byId("pause").addEventListener("click", () => {
  if (poller.paused) poller.resume();
  else poller.pause();
  fill(byId("pause"), poller.paused ? "Resume" : "Pause");
  if (poller.paused) link("", "paused");
});

poller.now();

// Asking -------------------------------------------------------------------------------------------

async function turn(signal) {
  const fleet = await call("../v1/overview", { signal });
  set(byId("store"), { class: fleet.store_up ? "mark good" : "mark bad", hidden: fleet.store_up });
  fill(byId("store"), fleet.store_up ? "store" : "store does not answer");
  const shown = fleet.deployments.find((item) => item.deployment === view.deployment);
  const deployment = shown ?? fleet.deployments[0];
  byId("empty").hidden = deployment !== undefined;
  byId("live").hidden = deployment === undefined;
  showDeployments(fleet.deployments, deployment?.deployment);
  if (deployment === undefined) return;
  const known = deployment.workers.find((item) => item.worker === view.worker);
  const worker = known ?? busiest(deployment.workers);
  showDeployment(fleet, deployment, worker);
  if (worker.plan_version !== null) await turnToWorker(deployment, worker, signal);
}

async function turnToWorker(deployment, worker, signal) {
  const path = pathOf(deployment);
  const named = { worker: worker.worker };
  const [plan, why] = await Promise.all([
    call(`${path}/map?${new URLSearchParams(named)}`, { signal }),
    call(`${path}/explain?${new URLSearchParams({ ...named, ...cell })}`, { signal }),
  ]);
  if (signal.aborted) return;
  const drafter = chosenDrafter(plan, worker);
  if (cell === null) showHead(worker, why);
  showDrafters(plan.drafters, drafter?.drafter);
  if (drafter === undefined) map.clear();
  else map.show(plan, drafter, cell);
  const found = why.drafters.find((item) => item.drafter === drafter?.drafter);
  showWhy(why, drafter?.drafter);
  showAcceptance(found, why.ladder_requests);
  showMeasured(why);
  showGuard(why.guard);
  showShadows(why.shadows);
  if (sayCell) announce(spoken(why, drafter?.drafter));
  sayCell = false;
  tellNews(worker);
}

function outcome(error, waitMs) {
  if (error === null) {
    keys.hide();
    fill(byId("notice"), "");
    link("good", "live");
  } else if (error.wantsKey) {
    link("warn", "key needed");
    fill(byId("notice"), "");
    keys.ask();
  } else {
    const words = error.name === "TimeoutError" ? "the planner takes too long" : error.message;
    link("bad", "no answer");
    fill(byId("notice"), `Not up to date: ${words}. Asked again in ${age(waitMs / 1e3)}.`);
    if (!["ApiError", "TimeoutError"].includes(error.name)) reportError(error);
  }
}

function pathOf({ deployment }) {
  return `../v1/deployments/${encodeURIComponent(deployment)}`;
}

// Looking ------------------------------------------------------------------------------------------

function look(changes) {
  Object.assign(view, changes);
  cell = null;
  const kept = Object.entries(view).filter(([, name]) => name !== null);
  history.replaceState(null, "", `?${new URLSearchParams(kept)}`);
  poller.now();
}

function lookAt(chosen) {
  const isSame = chosen !== null && cell?.n === chosen.n && cell?.d === chosen.d;
  cell = isSame ? null : chosen;
  sayCell = cell !== null;
  byId("present").hidden = cell === null;
  poller.now();
}

/** The drafter asked for, or the main one when the worker was first looked at: it does not flip. */
function chosenDrafter(plan, worker) {
  if (first.worker !== worker.worker) {
    first = { worker: worker.worker, drafter: mainDrafter(worker).drafter };
  }
  const name = view.drafter ?? first.drafter;
  return plan.drafters.find((item) => item.drafter === name) ?? plan.drafters[0];
}

// Showing ------------------------------------------------------------------------------------------

function showDeployments(deployments, chosen) {
  options(byId("deployment"), deployments.map((item) => item.deployment), chosen);
  byId("deployment").disabled = deployments.length === 0;
}

function showDrafters(drafters, chosen) {
  options(byId("drafter"), drafters.map((item) => item.drafter), chosen);
  byId("drafters").hidden = drafters.length < 2;
}

function options(select, names, chosen) {
  const present = [...select.options].map((option) => option.value);
  if (names.join("\n") !== present.join("\n")) {
    fill(select, names.map((name) => el("option", { value: name }, name)));
  }
  if (chosen !== undefined) select.value = chosen;
}

function showDeployment(fleet, deployment, worker) {
  const { workers: all, policy, objective, settings_version: version } = deployment;
  workers.show(all, worker.worker);
  byId("fleet").hidden = all.length === 1;
  byId("live").classList.toggle("with-fleet", all.length > 1);
  fill(byId("workers-title"), counted(all.length, "worker"));
  fill(byId("policy"), policy);
  fill(byId("policy-more"), `objective ${objective} · settings version ${version}`);
  fill(byId("plan-title"), `Plan of ${nameOf(worker)}`);
  const connected = all.filter((item) => item.state !== "gone").length;
  latest = {
    path: pathOf(deployment),
    deployment: deployment.deployment,
    worker: worker.worker,
    requests: worker.requests,
    workers: connected,
    policies: fleet.policies,
  };
  showMarks(worker);
  const isPlanned = worker.plan_version !== null;
  byId("live").classList.toggle("unplanned", !isPlanned);
  if (isPlanned) return;
  fill(byId("ratio"), times(null));
  fill(byId("reason"), "Nothing was planned for this worker yet.");
}

/** Drafters that nothing was verified of are left out: they may never be used. */
function showHead(worker, why) {
  const { drafters, rate_vs_off_ratio: ratio } = worker;
  const isNew = ratio === null && drafters.every((item) => item.verified === 0);
  fill(byId("ratio"), times(ratio));
  fill(byId("ratio-more"), ...(isNew ? UNVERIFIED : PREDICTED));
  fill(byId("reason"), why.reason);
}

function showMarks(worker) {
  const { model, state, requests, plan_version: version, plan_age_s: sinceS } = worker;
  const marks = [
    ["", model || "model not named"],
    [STATE_KINDS[state], `${state}, ${counted(requests, "request")}`],
    ["", version === null ? "no plan yet" : `plan ${version}, ${age(sinceS)} old`],
    ...marksOf(worker),
  ];
  if (marksOf(worker).length === 0) marks.push(["good", "no guard trips, no drift"]);
  fill(byId("marks"), marks.map(([kind, text]) => el("span", { class: `mark ${kind}` }, text)));
}

function link(kind, text) {
  set(byId("link"), { class: `mark ${kind}` });
  fill(byId("link"), text);
}

/** Says aloud what changed of the worker looked at: its drafts, and what is marked. */
function tellNews(worker) {
  const drafts = mainDrafter(worker).draft_tokens;
  const plan = drafts ? `${counted(drafts, "draft")} each` : "no drafts";
  const news = [plan, ...marksOf(worker).map(([, text]) => text)].join(", ");
  if (heard.worker === worker.worker && heard.news !== news) {
    announce(`${nameOf(worker)}: ${news}`);
  }
  heard = { worker: worker.worker, news };
}

/** Says something aloud, after what is being said; nothing is seen of it. */
function announce(text) {
  const log = byId("announce");
  log.append(el("p", {}, text));
  while (log.childElementCount > MOST_SAID) log.firstElementChild.remove();
}
