// A client of token-broker for TypeScript, with fetch only (Node.js 18, Deno, Bun). See README.md beside it.

const logIn = "level_not_available missing_token_container invalid_token_request unknown_account unauthenticated".split(" ");
const pause = (seconds: number) => new Promise(resume => setTimeout(resume, seconds * 1000 * (1 + Math.random() / 10)));
const clocks = () => ({ steady: performance.now(), wall: Date.now() });
type Clocks = ReturnType<typeof clocks>;
/** In seconds. The one clock may stand still while the machine sleeps, and the other may be set back. */
const age = (then: Clocks) => Math.max(performance.now() - then.steady, Date.now() - then.wall) / 1000;

/** Why there is no token. `status` is 0 where no answer came; `code` and `message` are the broker's. */
export class BrokerError extends Error {
  readonly code: string;
  readonly errorCode?: string; // what the provider said
  readonly retryAfter?: number; // seconds
  readonly requestID?: string;
  readonly mustLogIn: boolean; // only a login of the user helps
  readonly reconnectURI?: string; // where the user can log in again
  constructor(readonly status: number, fields?: Headers, body = "{}", detail?: string) {
    let problem: Record<string, any> = {};
    try { problem = JSON.parse(body) ?? {}; } catch { /* A proxy's answer is no JSON. */ }
    super(detail ?? problem.detail ?? `The broker answered ${status}.`);
    this.code = problem.code ?? (status == 0 ? "network_error" : "");
    this.errorCode = problem.error_code;
    this.retryAfter = /^\d+$/.test(fields?.get("Retry-After") ?? "") ? Number(fields!.get("Retry-After")) : undefined;
    this.requestID = fields?.get("X-Request-ID") ?? undefined;
    this.mustLogIn = logIn.includes(this.code);
    this.reconnectURI = problem.session?.reconnect_uri;
  }

  /** A 502 without a code is a proxy's. */
  get isPassing() { return [0, 429, 503].includes(this.status) || (this.status >= 500 && this.code == ""); }
}

/** A token and what belongs to it. `body` is the whole answer of `GET /credentials`. */
export class Credentials {
  readonly token: string;
  constructor(readonly etag: string, readonly body: Record<string, any>, readonly asked: Clocks, readonly checked = asked) {
    this.token = body.token;
  }
  /** How long the token is valid, counted from the moment before it was asked for. */
  get secondsLeft() { return this.body.expires_in === null ? Infinity : this.body.expires_in - age(this.asked); }
}

/** `refused`: credentials that the provider's API answered with 401; all callers that name the same ones cause one renewal.
 *  `subStatus`: the API's, where it says one (TIDAL). */
export type Wish = { tenant?: string, level?: "client" | "user", minTTL?: number, refused?: Credentials, subStatus?: string };
export type Settings = { timeout?: number, maxAge?: number, capacity?: number };
export type BrokerEvent = { id: string, name: string, data: Record<string, any> };

/** `timeout`: the most seconds that a call takes. `maxAge`: the seconds for which a token is given from memory before the
 *  broker is asked whether it is still current. `capacity`: the most tokens in memory. */
export class TokenBroker {
  private readonly memory = new Map<string, Credentials>();
  constructor(readonly base: string, private readonly key: string, readonly settings: Settings = {}) {}

  /** Credentials that are valid for `minTTL` (60) seconds. */
  async token(storageKey = "default", wish: Wish = {}): Promise<Credentials> {
    const { tenant = "", level = "user", minTTL = 60, refused, subStatus = "11003" } = wish;
    const { timeout = 30, maxAge = 30, capacity = 10_000 } = this.settings;
    const name = [tenant, storageKey, level].join(" ");
    if (refused && this.memory.get(name)?.etag == refused.etag) this.memory.delete(name);
    const known = this.memory.get(name);
    if (known && age(known.checked) < maxAge && known.secondsLeft > Math.max(0, minTTL)) return known;
    const query = new URLSearchParams({ storage_key: storageKey, level, min_ttl: String(minTTL) });
    if (refused) query.set("api_error_sub_status", subStatus);
    const compared = refused ?? (known && known.secondsLeft > 0 ? known : undefined);
    const spare = refused ? undefined : compared; // It is given while the broker does not answer.
    const began = clocks(), budget = spare ? Math.min(5, timeout) : timeout;
    for (let wait = 0.2; ; wait = Math.min(2 * wait, 5)) {
      const asked = clocks(), left = Math.max(1, budget - age(began)), stop = new AbortController();
      const timer = setTimeout(() => stop.abort(), (left + 2) * 1000);
      const fields = { Prefer: `wait=${Math.floor(left)}`, ...(compared && { "If-None-Match": compared.etag }) };
      let failure: BrokerError;
      try {
        const answer = await this.get(`/credentials?${query}`, tenant, fields, stop.signal);
        const body = await answer.text();
        const isSame = answer.status == 304 && compared && compared.secondsLeft > 0;
        if (isSame && refused) return refused; // The broker has no newer one.
        if (isSame || answer.status == 200) {
          const found = isSame ? new Credentials(compared.etag, compared.body, compared.asked, asked)
            : new Credentials(answer.headers.get("ETag")!, JSON.parse(body), asked);
          if (this.memory.size >= capacity) this.memory.delete(this.memory.keys().next().value!);
          this.memory.set(name, found);
          return found;
        }
        failure = new BrokerError(answer.status, answer.headers, body);
      } catch (fault) {
        failure = new BrokerError(0, undefined, "", `The broker does not answer: ${fault}`);
      } finally { clearTimeout(timer); }
      if (!failure.isPassing) this.memory.delete(name);
      else if (spare && spare.secondsLeft > 0) return spare;
      const next = failure.retryAfter ?? (failure.status ? Math.max(1, wait) : wait);
      if (!failure.isPassing || age(began) + next > budget) throw failure;
      await pause(next);
    }
  }

  /** Gives events without end, and connects again after a fault. Tokens that an event replaces are forgotten. */
  async *events(tenant = "", lastEventID = ""): AsyncGenerator<BrokerEvent> {
    let retry = 1;
    for (let wait = 1; ; wait = Math.min(2 * wait, 30)) {
      const stop = new AbortController();
      let silence = setTimeout(() => stop.abort(), 45_000); // The broker sends a comment after 15 seconds.
      try {
        const answer = await this.get("/events", tenant, { "Last-Event-ID": lastEventID }, stop.signal);
        if (answer.status != 200) {
          const failure = new BrokerError(answer.status, answer.headers, await answer.text());
          if (answer.status < 500 && answer.status != 429) throw failure;
          wait = failure.retryAfter ?? wait;
        }
        const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
        for (let text = "", part = await reader.read(); !part.done && answer.status == 200; part = await reader.read()) {
          clearTimeout(silence);
          silence = setTimeout(() => stop.abort(), 45_000);
          const blocks = (text + part.value).split("\n\n");
          text = blocks.pop()!;
          if (text.length > 1 << 20) throw new RangeError("an event is too long");
          for (const block of blocks) {
            const fields = new Map(block.split("\n").map(line => line.split(/: (.*)/) as [string, string]));
            const id = fields.get("id") ?? lastEventID, data = fields.get("data");
            retry = fields.has("retry") ? Number(fields.get("retry")) / 1000 : retry;
            if (data) yield this.heard({ id, name: fields.get("event") ?? "message", data: JSON.parse(data) });
            [lastEventID, wait] = [id, retry];
          }
        }
      } catch (fault) {
        if (fault instanceof BrokerError) throw fault;
      } finally { clearTimeout(silence); stop.abort(); }
      await pause(wait);
    }
  }

  private heard(event: BrokerEvent) {
    const { name, data } = event, isUpdate = name == "credentials.updated";
    if (name == "stream.reset") this.memory.clear();
    for (const [tenant, level] of [["", "client"], ["", "user"], [data.tenant, "client"], [data.tenant, "user"]]) {
      const key = [tenant, data.storage_key, level].join(" "), isNew = this.memory.get(key)?.etag != `"${data.version}"`;
      if ((isUpdate && isNew) || name == "credentials.deauthorized") this.memory.delete(key);
    }
    return event;
  }

  private get(path: string, tenant: string, fields: Record<string, string>, signal: AbortSignal) {
    const headers = { Authorization: `Bearer ${this.key}`, ...fields, ...(tenant && { "X-Tenant": tenant }) };
    // No redirect is followed: the key is for the broker only.
    return fetch(this.base.replace(/\/+$/, "") + path, { headers, signal, redirect: "manual" });
  }
}
