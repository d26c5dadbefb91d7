// Calls the client for TypeScript, one command of standard input at a time (see ../clients.py).
import { BrokerError, Credentials, TokenBroker } from "./token-broker.js";

// Node.js, whose declarations Debian does not need to have.
declare const process: { argv: string[], stdin: AsyncIterable<Uint8Array>, exit(status: number): never };

function say(...words: unknown[]) {
  console.log(words.join(" "));
}

async function listen(client: TokenBroker) {
  for await (const event of client.events()) say("event", event.id, event.name, event.data.storage_key ?? "-");
}

async function* lines() {
  const decoder = new TextDecoder();
  let text = "";
  for await (const octets of process.stdin) {
    const parts = (text + decoder.decode(octets, { stream: true })).split("\n");
    text = parts.pop()!;
    yield* parts;
  }
}

const [base, key] = process.argv.slice(2);
let client = new TokenBroker(base, key);
let last: Credentials | undefined, kept: Credentials | undefined;
for await (const line of lines()) {
  const [command, ...words] = line.split(" ");
  try {
    switch (command) {
      case "client":
        client = new TokenBroker(base, key, { maxAge: Number(words[0]), timeout: Number(words[1]) });
        say("ok");
        break;
      case "token":
        last = await client.token(words[0], { minTTL: Number(words[1]) });
        say("token", last.etag, last.token);
        break;
      case "keep":
        kept = last;
        say("ok");
        break;
      case "refuse": {
        const calls = Array.from({ length: Number(words[1]) }, () => client.token(words[0], { refused: kept }));
        say("tokens", ...(await Promise.all(calls)).map(found => found.etag));
        break;
      }
      case "listen":
        void listen(client);
        say("ok");
        break;
    }
  } catch (error) {
    if (!(error instanceof BrokerError)) throw error;
    say("error", error.status, error.code || "-", error.retryAfter ?? "-", error.mustLogIn ? "yes" : "no");
  }
}
process.exit(0);
