// Driver: what driver.py is, for systems that need Node. It says the same lines; see there.

import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";

const DIGITS = 8;
const MILLISECONDS_A_LINE = 10;

export class Order {
  constructor(fields) {
    Object.assign(this, fields);
    this.dsn = this.url.replace("postgresql+psycopg:", "postgresql:");
  }

  // The jobs, some at a time: arrays of {d, e}.
  async *chunks(size = 1000) {
    let chunk = [];
    let count = 0;
    for await (const line of createInterface({ input: createReadStream(this.rows) })) {
      if (count++ === this.jobs) break;
      const [d, e] = line.split(" ");
      chunk.push({ d, e });
      if (chunk.length === size) {
        yield chunk;
        chunk = [];
      }
    }
    if (chunk.length) yield chunk;
  }
}

class Line {
  #done = [];
  #words = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

  // What a handler calls, with the first string of its job.
  did(d) {
    this.#done.push(d);
  }

  // Wait for the start. Resolves to a promise of the end, in an array: await would wait for both.
  async ready() {
    tell({ ready: true });
    await this.#word();
    let told = 0;
    const report = setInterval(() => {
      if (this.#done.length === told) return;
      told = this.#done.length;
      tell({ handled: told });
    }, MILLISECONDS_A_LINE);
    return [this.#word().then(() => clearInterval(report))];
  }

  finish() {
    tell({ numbers: this.#done.map((d) => Number(d.slice(-DIGITS))) });
  }

  async #word() {
    const { done } = await this.#words.next();
    if (done) process.exit(1); // nobody is there any more
  }
}

const say = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // what a system prints

function tell(what) {
  say(`${JSON.stringify(what)}\n`);
}

const [system, action, order] = process.argv.slice(2);
const module = await import(`./${system}.mjs`);
if (action === "fill") {
  await module.fill(new Order(JSON.parse(order)));
  process.exit(0);
}
const line = new Line();
await module.work(new Order(JSON.parse(order)), line);
line.finish();
say("", () => process.exit(0)); // after all that was told
