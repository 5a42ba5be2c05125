"use strict";
// Reads the packed columns of the page. `pack.rs` describes their layout.

const NEVER = 0xffffffff;

async function inflate(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

let resumedMs = performance.now();

// Lets the page answer its reader if a script has been busy for long.
async function pause() {
  if (performance.now() - resumedMs < 12) return;
  await new Promise((resume) => setTimeout(resume));
  resumedMs = performance.now();
}

class Columns {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  number() {
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    for (let scale = 128; byte >= 128; scale *= 128) {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
    }
    return value;
  }

  text() {
    const length = this.number();
    this.at += length;
    return new TextDecoder().decode(this.bytes.subarray(this.at - length, this.at));
  }

  column(Kind, count) {
    const column = new Kind(count);
    for (let row = 0; row < count; row++) column[row] = this.number();
    return column;
  }

  // Numbers of which the differences are written.
  sums(Kind, count) {
    const column = new Kind(count);
    for (let row = 0, sum = 0; row < count; row++) column[row] = sum += this.number();
    return column;
  }

  signedSums(count) {
    const column = new Float64Array(count);
    for (let row = 0, sum = 0; row < count; row++) {
      const code = this.number();
      column[row] = sum += code % 2 ? -(code + 1) / 2 : code / 2;
    }
    return column;
  }

  async lives() {
    const count = this.number();
    const born = this.sums(Uint32Array, count);
    await pause();
    const died = this.column(Uint32Array, count);
    for (let row = 0; row < count; row++) died[row] = died[row] ? born[row] + died[row] - 1 : NEVER;
    await pause();
    const bytes = this.column(Float64Array, count);
    await pause();
    const address = this.signedSums(count);
    await pause();
    return { count, born, died, bytes, address, stream: this.column(Uint32Array, count) };
  }
}

async function readData(bytes) {
  const columns = new Columns(bytes);
  const from = columns.number();
  const to = columns.number();
  const strings = Array.from({ length: columns.number() }, () => columns.text());
  const frameCount = columns.number();
  const [name, file, line] = [Uint32Array, Uint32Array, Float64Array].map((kind) => columns.column(kind, frameCount));
  const lengths = columns.column(Uint32Array, columns.number());
  const stacks = [...lengths].map((length) => columns.column(Uint32Array, length));
  const streams = [...columns.column(Uint32Array, columns.number())].map((text) => strings[text]);
  const blocks = await columns.lives();
  await pause();
  blocks.stack = Int32Array.from(columns.column(Uint32Array, blocks.count), (stack) => stack - 1);
  const stepCount = columns.number();
  const summed = { count: stepCount, event: columns.sums(Uint32Array, stepCount), bytes: columns.signedSums(stepCount) };
  await pause();
  const segments = await columns.lives();
  const timeCount = columns.number();
  const times = { event: columns.sums(Uint32Array, timeCount), us: columns.sums(Float64Array, timeCount) };
  const markCount = columns.number();
  const marks = { count: markCount, event: columns.sums(Uint32Array, markCount) };
  marks.text = [...columns.column(Uint32Array, markCount)].map((text) => strings[text]);
  return { from, to, strings, frames: { name, file, line }, stacks, streams, blocks, summed, segments, times, marks };
}

// The first index whose number is above `limit`, in numbers that ascend.
function firstAbove(numbers, limit) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Microseconds since the first event of the trace. Times between those told are interpolated.
function timeOf({ event, us }, asked) {
  const next = firstAbove(event, asked);
  if (next === 0) return us[0] ?? 0;
  if (next === event.length) return us[next - 1];
  const share = (asked - event[next - 1]) / (event[next] - event[next - 1]);
  return us[next - 1] + share * (us[next] - us[next - 1]);
}

function inBytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; bytes >= 999.5 && unit < units.length - 1; unit++) bytes /= 1000;
  return `${unit ? bytes.toPrecision(3) : Math.round(bytes)} ${units[unit]}`;
}

function inTime(us) {
  if (us < 1e3) return `${Math.round(us)} µs`;
  return us < 1e6 ? `${(us / 1e3).toPrecision(4)} ms` : `${(us / 1e6).toFixed(4)} s`;
}

const inCount = (count) => Math.round(count).toLocaleString("en-US");
