// The playground: messages go out, answers come in, one at a time.

import { byId, el, fill } from "./shared/dom.js";
import { ApiError, call, send } from "./shared/api.js";
import { keyForm } from "./shared/key_form.js";
import { chosenModel, fault, offer, requestFor } from "./settings.js";
import { BrokenOff, chunksOf } from "./stream.js";
import { AnswerTurn, askedTurn } from "./turns.js";

const EXAMPLES = [
  "Write a Python function that adds two numbers.",
  "Count from one to twenty in words.",
  "Explain in three sentences why the sky is blue.",
];
const FACTS_EVERY_MS = 200;
const [FIRST_WAIT_MS, LONGEST_WAIT_MS] = [1000, 15000];

const message = byId("message");
const notice = byId("notice");
const scroller = byId("scroller");
const turns = byId("turns");
const key = keyForm("API key", async () => {
  await connect();
  if (ready) backToMessage();
});
/** The conversation as the next request will send it. */
let said = [];
let running = null;
let ready = false;
let waitMs = FIRST_WAIT_MS;
let retry = null;

/** Finds out what is served; asks again while nothing is. */
async function connect() {
  clearTimeout(retry);
  const trouble = await troubleOfServer();
  byId("state").className = trouble ? "mark warn" : "mark good";
  fill(byId("state"), trouble ?? "ready");
  ready = trouble === null;
  allow();
  if (ready) waitMs = FIRST_WAIT_MS;
  else retry = setTimeout(connect, document.hidden ? LONGEST_WAIT_MS : nextWaitMs());
}

async function troubleOfServer() {
  try {
    const { data } = await call("../v1/models");
    key.hide();
    offer(data);
    return data.length ? null : await reasonOfServer();
  } catch (error) {
    if (error.wantsKey) key.ask();
    return error.wantsKey ? "a key is needed" : "the router does not answer";
  }
}

async function reasonOfServer() {
  const { reason } = await (await send("../ready")).json();
  return reason ?? "no model is served";
}

function nextWaitMs() {
  waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
  return waitMs / 2;
}

/** Sends the message that is written and shows its answer as it comes. */
async function ask() {
  const text = message.value.trim();
  const conversation = said;
  const wrong = fault();
  if (wrong) warn(wrong);
  if (!text || wrong || !ready || running) return;
  warn(null);
  message.value = "";
  const asked = askedTurn(text);
  const turn = new AnswerTurn(chosenModel(), { tip: byId("tip"), say });
  turns.append(asked, turn.element);
  byId("welcome").hidden = true;
  toEnd();
  const why = await receive(turn, [...conversation, { role: "user", content: text }]);
  const follow = atEnd();
  if (turn.answer.text || why === null) {
    const answered = { role: "assistant", content: turn.answer.text };
    conversation.push({ role: "user", content: text }, answered);
    turn.end(why);
    say(`${why ?? "Answer complete"}: ${wordsOf(turn.answer)}`);
  } else {
    // Nothing came: the message is the user's again.
    asked.remove();
    turn.element.remove();
    message.value ||= text;
  }
  if (follow) toEnd();
  backToMessage();
}

/** Lets the user write on, unless they are elsewhere by now or a keyboard would cover the answer. */
function backToMessage() {
  const free = document.activeElement === document.body;
  if (free && !matchMedia("(pointer: coarse)").matches) message.focus();
}

function wordsOf({ tokens, accepted }) {
  return `${tokens} tokens, ${accepted} of them accepted drafts`;
}

/** Streams into a turn. Returns why the answer did not come to its end, null where it did. */
async function receive(turn, conversation) {
  start(new AbortController());
  say("Answering");
  const clock = setInterval(() => turn.showFacts(), FACTS_EVERY_MS);
  try {
    for await (const chunk of chunksOf(requestFor(conversation), running.signal)) {
      const follow = atEnd();
      turn.add(chunk);
      if (follow) toEnd();
    }
    return null;
  } catch (error) {
    return failed(error);
  } finally {
    clearInterval(clock);
    start(null);
  }
}

function start(controller) {
  running = controller;
  byId("stop").hidden = controller === null;
  allow();
}

function allow() {
  byId("send").disabled = !ready || running !== null;
}

/** Tells the user about an error; returns it in a few words. */
function failed(error) {
  if (error.name === "AbortError") return "Stopped";
  if (!(error instanceof ApiError || error instanceof BrokenOff)) console.error(error);
  warn(wordsFor(error));
  if (error instanceof ApiError) connect();
  return "Broken off";
}

function wordsFor({ status, message: reason }) {
  if (status === 0) return "The router does not answer.";
  if (status === 401) return "The router wants a valid key.";
  return `${whatHappened(status)}: ${reason.replace(/\.$/, "")}.`;
}

function whatHappened(status) {
  if (status === undefined) return "The answer broke off";
  if (status === 429) return "The router has too much to do, or a limit of the key is reached";
  if (status === 503) return "Nobody can answer at the moment";
  return status < 500 ? "The router did not take the request" : "The request failed";
}

function warn(words) {
  fill(notice, words ? el("p", { class: "notice" }, words) : null);
}

function say(words) {
  fill(byId("status"), words);
}

/** What scrolls: the conversation, or the whole page in a narrow window. */
function scrolling() {
  return getComputedStyle(scroller).overflowY === "auto" ? scroller : document.scrollingElement;
}

function atEnd() {
  const { scrollHeight, scrollTop, clientHeight } = scrolling();
  return scrollHeight - scrollTop - clientHeight < 48;
}

function toEnd() {
  scrolling().scrollTop = scrolling().scrollHeight;
}

function newChat() {
  running?.abort();
  said = [];
  fill(turns);
  warn(null);
  byId("welcome").hidden = false;
  message.focus();
}

function exampleButton(text) {
  const button = el("button", { type: "button" }, text);
  button.addEventListener("click", () => {
    message.value = text;
    message.focus();
  });
  return button;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.defaultPrevented) running?.abort();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new-chat").addEventListener("click", newChat);
byId("settings-form").addEventListener("submit", (event) => event.preventDefault());
byId("marks").addEventListener("change", ({ target }) => {
  document.body.classList.toggle("unmarked", !target.checked);
});
byId("key-place").append(key.element);
byId("examples").append(...EXAMPLES.map(exampleButton));
byId("settings").open = !matchMedia("(max-width: 60rem)").matches;
connect();
