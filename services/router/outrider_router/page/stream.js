// One streamed chat completion: the request goes out, the chunks of the answer come in.

import { refusal, send } from "./shared/api.js";

const ROUTE = "../v1/chat/completions";

/** An answer that began and did not come to its end; the message says why. */
export class BrokenOff extends Error {}

/**
 * The chunks of an answer as they come. Throws ApiError before the first of them, BrokenOff after
 * it, and AbortError once `signal` is given.
 */
export async function* chunksOf(body, signal) {
  const response = await send(ROUTE, {
    method: "POST",
    body: { ...body, stream: true, stream_options: { include_usage: true } },
    headers: { "X-Speculation-Report": "tokens" },
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new BrokenOff(chunk.error.message);
    yield chunk;
  }
  throw new BrokenOff("the connection ended in the middle of the answer");
}

/** The data of server-sent events; comments, which only keep the connection alive, are dropped. */
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let seen = "";
  for (;;) {
    const { done, value } = await read(reader);
    if (done) return;
    const events = (seen + value).split("\n\n");
    seen = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) yield event.slice("data: ".length);
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new BrokenOff("the connection to the router was lost");
  }
}
