// A client on the SDK's TypeScript build, as an application would write it. It plays one scenario against a server and
// prints, as JSON, what each step gave and every message that passed while it ran.
//
//   node client.mjs SCENARIO '{"command": ["node", "server.js"], "env": {}}'
//   node client.mjs SCENARIO '{"url": "http://127.0.0.1:8000/mcp"}'
//
// The packages are those of the working directory.

import { createRequire } from "node:module";
import { join } from "node:path";
import { scenarios } from "./scenarios.mjs";

const load = createRequire(join(process.cwd(), "/"));
const { Client } = load("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = load("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = load("@modelcontextprotocol/sdk/client/streamableHttp.js");
const schemas = load("@modelcontextprotocol/sdk/types.js");

const PATIENCE = 20_000; // milliseconds that a message may take

// The SDK takes up again each stream that ended with an error as its answer, a second later, and this server then says
// once more what it said on other streams meanwhile: whatever is compared would hold it or not, as it happens.
const once = { maxRetries: 0, initialReconnectionDelay: 1000, maxReconnectionDelay: 1000, reconnectionDelayGrowFactor: 1 };

const capabilities = {
  sampling: {},
  elicitation: { form: {}, url: {} },
  roots: { listChanged: true },
};

class Connection {
  tape = [];
  decline = false;

  async open(target) {
    this.transport = target.url
      ? new StreamableHTTPClientTransport(new URL(target.url), { reconnectionOptions: once })
      : new StdioClientTransport({ command: target.command[0], args: target.command.slice(1), env: target.env });
    const send = this.transport.send.bind(this.transport);
    this.transport.send = (message, options) => {
      this.tape.push({ sent: message });
      return send(message, options);
    };
    this.transport.onmessage = (message) => this.tape.push({ got: message });
    this.client = new Client({ name: "typescript-client", version: "1" }, { capabilities });
    this.#answer();
    await this.client.connect(this.transport);
    return this;
  }

  // What a server may ask of a client.
  #answer() {
    this.client.setRequestHandler(schemas.ListRootsRequestSchema, () => ({
      roots: [{ uri: "file:///project", name: "project" }],
    }));
    this.client.setRequestHandler(schemas.CreateMessageRequestSchema, ({ params }) => ({
      model: "scripted",
      role: "assistant",
      stopReason: "endTurn",
      content: { type: "text", text: `answer to ${params.messages[0].content.text} – “é” 🙂` },
    }));
    this.client.setRequestHandler(schemas.ElicitRequestSchema, ({ params }) => {
      if (this.decline) return { action: "decline" };
      if (params.mode === "url") return { action: "accept" };
      const name = "interpretation" in params.requestedSchema.properties ? "interpretation" : "name";
      return { action: "accept", content: { [name]: "technical", check: true, number: 1.5 } };
    });
  }

  // Waits until so many messages with this method have come in the present step.
  async until(method, count = 1) {
    const end = Date.now() + PATIENCE;
    while (this.tape.filter(({ got }) => got?.method === method).length < count) {
      if (Date.now() > end) throw new Error(`no ${method}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  call(name, args = {}, options = {}) {
    return this.client.callTool({ name, arguments: args }, undefined, { timeout: PATIENCE, ...options });
  }

  close() {
    return this.client.close();
  }
}

const steps = [];

// Plays a step; what it raises is what it gave.
async function step(name, connection, act) {
  connection.tape = [];
  let outcome;
  try {
    outcome = { result: await act(connection) };
  } catch ({ code, message, data }) {
    outcome = { error: { code, message, data } };
  }
  steps.push({ name, ...outcome, tape: connection.tape });
  return outcome;
}

const [scenario, target] = [process.argv[2], JSON.parse(process.argv[3])];
await scenarios[scenario]({ make: () => new Connection(), step, target, schemas });
process.stdout.write(JSON.stringify(steps));
