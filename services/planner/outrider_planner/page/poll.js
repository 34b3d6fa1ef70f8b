// Asks again and again, gently: answers take a tenth of the time at most, failures make it rarer,
// and nothing is asked while nobody looks.

const EVERY_MS = 2000;
const MOST_MS = 30000;
const ANSWER_LIMIT_MS = 15000;
const SHARE_OF_TIME = 10;

/**
 * Calls `turn(signal)`, which asks and shows; `onOutcome(error, waitMs)` hears how each turn went,
 * with null for a good one. Returns { now(), pause(), resume(), paused }: `now` gives up a turn that
 * runs and begins another.
 */
export function poll(turn, onOutcome) {
  let timer = 0;
  let running = null;
  let failures = 0;
  let paused = false;

  const idle = () => paused || document.hidden;

  async function now() {
    stop();
    running = new AbortController();
    const { signal } = running;
    const beganMs = performance.now();
    let error = null;
    try {
      await turn(AbortSignal.any([signal, AbortSignal.timeout(ANSWER_LIMIT_MS)]));
    } catch (thrown) {
      error = thrown;
    }
    if (signal.aborted) return;
    failures = error === null ? 0 : failures + 1;
    const tookMs = performance.now() - beganMs;
    const waitMs =
      error === null
        ? Math.max(EVERY_MS, SHARE_OF_TIME * tookMs)
        : Math.min(EVERY_MS * 2 ** failures, MOST_MS);
    onOutcome(error, waitMs);
    if (!idle()) timer = setTimeout(now, waitMs);
  }

  function stop() {
    clearTimeout(timer);
    running?.abort();
  }

  document.addEventListener("visibilitychange", () => (idle() ? stop() : now()));
  return {
    now,
    pause() {
      paused = true;
      stop();
    },
    resume() {
      paused = false;
      now();
    },
    get paused() {
      return paused;
    },
  };
}
