// What the client does: the features of the protocol one by one, calls over a ceiling, and a proxy that is killed.

const LOG = "notifications/message";
const CHANGED = "notifications/resources/list_changed";
const PROGRESS = "notifications/progress";
const TOOLS = [
  ["echo", { message: "as it is: é 🙂 \u2028 \\ \" </script>" }],
  ["get-sum", { a: 0.1, b: 1e21 }],
  ["get-annotated-message", { messageType: "error", includeImage: true }],
  ["get-tiny-image", {}],
  ["get-resource-links", { count: 4 }],
  ["get-resource-reference", { resourceType: "Blob", resourceId: 3 }],
  ["get-structured-content", { location: "Chicago" }],
  ["get-roots-list", {}],
  ["gzip-file-as-resource", { name: "a.gz", data: "data:text/plain,hello", outputType: "resource" }, CHANGED],
  ["gzip-file-as-resource", { name: "b.gz", data: "data:text/plain,hello", outputType: "resourceLink" }, CHANGED],
  ["echo", { message: 7 }],
  ["get-resource-reference", { resourceType: "Text", resourceId: -1 }],
  ["no-such-tool", {}],
  ["trigger-sampling-request", { prompt: "why?", maxTokens: 9 }],
  ["trigger-elicitation-request", {}],
  ["trigger-url-elicitation", { url: "https://example.org/", elicitationId: "one" }],
  ["trigger-url-elicitation", { url: "https://example.org/", elicitationId: "two", errorPath: true }],
];
const DOCUMENT = "demo://resource/static/document/features.md";
const DYNAMIC = "demo://resource/dynamic/text/5";

async function features({ make, step, target, schemas }) {
  const connection = make();
  const of = (name, act) => step(name, connection, (it) => act(it.client, it));

  await of("initialize", async (_, it) => {
    await it.open(target);
    await it.until(LOG); // the server has asked for the roots, and says so
    return [it.client.getServerVersion(), it.client.getServerCapabilities(), it.client.getInstructions()];
  });
  await of("ping", (client) => client.ping());
  await of("tools/list", (client) => client.listTools());
  for (const [name, args, told] of TOOLS) {
    await of(`tools/call ${name} ${JSON.stringify(args)}`, async (_, it) => {
      const result = await it.call(name, args);
      if (told) await it.until(told);
      return result;
    });
  }
  connection.decline = true;
  await of("declined", (_, it) => it.call("trigger-elicitation-request"));
  connection.decline = false;

  await of("progress", (_, it) =>
    it.call("trigger-long-running-operation", { duration: 0.4, steps: 4 }, { onprogress: () => {} }),
  );
  await of("cancelled", async (_, it) => {
    const controller = new AbortController();
    const options = { onprogress: () => controller.abort("changed my mind"), signal: controller.signal };
    const call = it.call("trigger-long-running-operation", { duration: 0.6, steps: 3 }, options);
    const outcome = await call.catch(({ code, message }) => ({ code, message }));
    await it.until(PROGRESS, 3); // this server works on, and says so
    return outcome;
  });
  await of("logging/setLevel", (client) => client.setLoggingLevel("debug"));
  await of("logging on", async (_, it) => {
    const result = await it.call("toggle-simulated-logging");
    await it.until(LOG);
    return result;
  });
  await of("logging off", (_, it) => it.call("toggle-simulated-logging"));

  await of("resources/list", (client) => client.listResources());
  await of("resources/templates/list", (client) => client.listResourceTemplates());
  for (const uri of [DOCUMENT, DYNAMIC, "demo://resource/dynamic/blob/6", "demo://resource/none"]) {
    await of(`resources/read ${uri}`, (client) => client.readResource({ uri }));
  }
  await of("resources/subscribe", async (client, it) => {
    const result = await client.subscribeResource({ uri: DYNAMIC });
    await it.until(LOG);
    return result;
  });
  await of("updates on", async (_, it) => {
    const result = await it.call("toggle-subscriber-updates");
    await it.until("notifications/resources/updated");
    return result;
  });
  await of("updates off", (_, it) => it.call("toggle-subscriber-updates"));
  await of("resources/unsubscribe", async (client, it) => {
    const result = await client.unsubscribeResource({ uri: DYNAMIC });
    await it.until(LOG);
    return result;
  });

  await of("prompts/list", (client) => client.listPrompts());
  for (const [name, args] of [
    ["simple-prompt", undefined],
    ["args-prompt", { city: "Łódź" }],
    ["args-prompt", {}],
    ["resource-prompt", { resourceType: "Text", resourceId: "2" }],
    ["no-such-prompt", {}],
  ]) {
    await of(`prompts/get ${name} ${JSON.stringify(args)}`, (client) => client.getPrompt({ name, arguments: args }));
  }
  await of("completion/complete of a prompt", (client) =>
    client.complete({
      ref: { type: "ref/prompt", name: "completable-prompt" },
      argument: { name: "name", value: "A" },
      context: { arguments: { department: "Engineering" } },
    }),
  );
  await of("completion/complete of a resource", (client) =>
    client.complete({
      ref: { type: "ref/resource", uri: "demo://resource/dynamic/text/{resourceId}" },
      argument: { name: "resourceId", value: "12" },
    }),
  );
  await of("roots changed", async (client, it) => {
    await client.sendRootsListChanged();
    await it.until(LOG);
  });
  await of("no such method", (client) => client.request({ method: "no/such/method" }, schemas.EmptyResultSchema));
  await of("task", async (client, it) => {
    const params = { name: "simulate-research-query", arguments: { topic: "ants", ambiguous: true } };
    const told = [];
    for await (const message of client.experimental.tasks.callToolStream(params, undefined, { task: {} })) {
      if (message.type !== "taskStatus") told.push(message);
    }
    await it.until("notifications/tasks/status", 7);
    return told;
  });
  await connection.close();
}

async function refusals({ make, step, target }) {
  const connection = make();
  await step("open", connection, async (it) => void (await it.open(target)));
  const weather = (it) => it.call("get-structured-content", { location: "Chicago" });
  await step("weather", connection, weather);
  await step("over, not listed", connection, weather);
  await step("tools/list", connection, (it) => it.client.listTools());
  await step("over, listed", connection, weather);
  for (const number of [1, 2, 3, 4]) await step(`echo ${number}`, connection, (it) => it.call("echo", { message: "again" }));
  for (const number of [1, 2]) {
    await step(`task ${number}`, connection, async (it) => {
      const params = { name: "simulate-research-query", arguments: { topic: `${number}` } };
      const { value } = await it.client.experimental.tasks.callToolStream(params, undefined, { task: {} }).next();
      return value.type === "error" ? value.error.message : value.type;
    });
  }
  await step("ping", connection, (it) => it.client.ping());
  await step("another tool", connection, (it) => it.call("get-sum", { a: 1, b: 2 }));
  await connection.close();
}

async function killed({ make, step, target }) {
  const [first, second] = [make(), make()];
  await step("open", first, async (it) => void (await it.open(target)));
  await step("echo", first, (it) => it.call("echo", { message: "1" }));
  await step("in mid-call", first, (it) => {
    const onprogress = () => process.kill(it.transport.pid, "SIGKILL");
    return it.call("trigger-long-running-operation", { duration: 2, steps: 20 }, { onprogress });
  });
  await step("anew", second, async (it) => void (await it.open(target)));
  for (const number of [2, 3, 4]) await step(`echo ${number}`, second, (it) => it.call("echo", { message: `${number}` }));
  await step("ping", second, (it) => it.client.ping());
  await second.close();
}

export const scenarios = { features, refusals, killed };
