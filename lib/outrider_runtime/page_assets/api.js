// Calls to the page's own server. The key, where one is asked for, is kept for this tab only
// (sessionStorage) and goes nowhere but into the Authorization header of these calls.

const KEY = "outrider.key";

/** An answer that is no success: its status (0: the server was not reached) and words. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }

  /** Whether another key would help. */
  get wantsKey() {
    return this.status === 401;
  }
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Keeps a key for this tab; an empty one is forgotten. */
export function keepKey(key) {
  if (key.trim() === "") sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, key.trim());
}

/**
 * A response, whatever its status, for those who read it as it comes.
 * options: { method, body (sent as JSON), signal, headers }. Throws ApiError(0) where there is no
 * server and ApiError(401) for a key that cannot be sent; an aborted call throws AbortError as fetch
 * does.
 */
export async function send(path, { method = "GET", body, signal, headers: more = {} } = {}) {
  const headers = new Headers({ Accept: "application/json", ...more });
  if (hasKey()) authorize(headers);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  const text = body === undefined ? undefined : JSON.stringify(body);
  try {
    return await fetch(path, { method, headers, body: text, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError" || error.name === "TimeoutError") throw error;
    throw new ApiError(0, "the server does not answer");
  }
}

function authorize(headers) {
  try {
    headers.set("Authorization", `Bearer ${sessionStorage.getItem(KEY)}`);
  } catch {
    throw new ApiError(401, "the key holds characters that no header can carry");
  }
}

/** The JSON of a successful answer. Throws ApiError with the server's own words otherwise. */
export async function call(path, options) {
  const response = await send(path, options);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** What a response that is no success says, in the form {"error": {"message"}} if it has it. */
export async function refusal(response) {
  let message = response.statusText;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // No JSON, or of another form: a proxy's page, for example. The status says enough.
  }
  return new ApiError(response.status, String(message || `status ${response.status}`));
}
