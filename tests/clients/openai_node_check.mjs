// Checks of the official OpenAI client for Node.
import OpenAI from "openai";
import assert from "node:assert/strict";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const settings = { model, messages, max_tokens: 24, temperature: 0 };

const checks = {
  "models": async () => {
    const names = [];
    for await (const each of client.models.list()) names.push(each.id);
    assert(names.includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  "a chat": async () => {
    const answer = await client.chat.completions.create(settings);
    assert.match(answer.choices[0].message.content, /Paris/);
  },
  "a stream": async () => {
    let text = "", usage = null;
    const stream = await client.chat.completions.create({ ...settings, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.match(text, /Paris/);
    assert(usage.completion_tokens > 0);
  },
  "the stream helper": async () => {
    const runner = client.chat.completions.stream(settings);
    let deltas = "";
    runner.on("content", (delta) => { deltas += delta; });
    assert.equal(await runner.finalContent(), deltas);
  },
  "an aborted stream": async () => {
    const stream = await client.completions.create({ model, prompt: "Once", max_tokens: 1500, stream: true });
    for await (const _ of stream) { stream.controller.abort(); break; }
    await checks["a chat"]();
  },
  "embeddings": async () => {
    const input = ["A man is eating food.", "A man eats something."];
    const found = await client.embeddings.create({ model: "all-minilm-l6-v2", input });
    const [one, other] = found.data.map((each) => each.embedding);
    assert.equal(one.length, 384);
    assert(one.reduce((sum, each, index) => sum + each * other[index], 0) > 0.8);
  },
  "errors are typed": async () => {
    await assert.rejects(client.chat.completions.create({ ...settings, model: "unknown" }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ ...settings, temperature: 3 }), (error) =>
      error instanceof OpenAI.BadRequestError && /temperature/.test(error.message) && error.param === "temperature");
  },
};

let hasFailed = false;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    hasFailed = true;
    console.log(`FAILED ${name}: ${error.message.split("\n")[0]}`);
  }
}
process.exit(hasFailed ? 1 : 0);
