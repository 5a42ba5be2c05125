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

// Lets the page respond to its user if a script has been busy for long.
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

  // Reads numbers that are stored as differences.
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
    const high = this.column(Uint16Array, count);
    await pause();
    return { count, born, died, bytes, address, high, stream: this.column(Uint32Array, count) };
  }
}

async function readData(bytes) {
  const columns = new Columns(bytes);
  const from = columns.number();
  const to = columns.number();
  const earlier = columns.number();
  const strings = Array.from({ length: columns.number() }, () => columns.text());
  const frameCount = columns.number();
  const [name, file, line] = [Uint32Array, Uint32Array, Float64Array].map((kind) => columns.column(kind, frameCount));
  const lengths = columns.column(Uint32Array, columns.number());
  const stacks = [...lengths].map((length) => columns.column(Uint32Array, length));
  const streams = [...columns.column(Uint32Array, columns.number())].map((text) => strings[text]);
  const blocks = await columns.lives();
  await pause();
  blocks.stack = Int32Array.from(columns.column(Uint32Array, blocks.count), (stack) => stack - 1);
  const summedBlocks = columns.number();
  const stepCount = columns.number();
  const summed = { blocks: summedBlocks, count: stepCount, event: columns.sums(Uint32Array, stepCount), bytes: columns.signedSums(stepCount) };
  await pause();
  const segments = await columns.lives();
  const errorUs = columns.number();
  const timeCount = columns.number();
  const times = { errorUs, event: columns.sums(Uint32Array, timeCount), us: columns.sums(Float64Array, timeCount) };
  const markCount = columns.number();
  const marks = { count: markCount, event: columns.sums(Uint32Array, markCount) };
  marks.text = [...columns.column(Uint32Array, markCount)].map((text) => strings[text]);
  const spanCount = columns.number();
  const spans = { count: spanCount, from: columns.sums(Uint32Array, spanCount), to: columns.column(Uint32Array, spanCount) };
  for (let span = 0; span < spanCount; span++) spans.to[span] += spans.from[span];
  spans.name = columns.column(Uint32Array, spanCount);
  const labels = readLabels(columns);
  for (const lives of labels.count ? [blocks, segments] : []) {
    lives.label = Int32Array.from(columns.column(Uint32Array, lives.count), (label) => label - 1);
    await pause();
  }
  return { from, to, earlier, strings, frames: { name, file, line }, stacks, streams, blocks, summed, segments, times, marks, spans, labels };
}

// Reads for each label the numbers of its texts, or -1.
function readLabels(columns) {
  const count = columns.number();
  const [tag, context, pool] = [0, 0, 0].map(() => Int32Array.from(columns.column(Uint32Array, count), (text) => text - 1));
  return { count, tag, context, pool };
}

// Returns the number of a text of a block's or a segment's label (`kind`: tag, context or pool), or -1.
function labelOf({ labels }, lives, row, kind) {
  return lives.label?.[row] >= 0 ? labels[kind][lives.label[row]] : -1;
}

// Returns the first index whose number is above `limit`, in ascending numbers.
function firstAbove(numbers, limit) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Returns microseconds since the first event of the trace. Times between stored ones are interpolated, off by at most
// `errorUs`.
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

// Formats a time that is off by at most `errorUs`, with no more digits than are right.
function inTime(us, errorUs = 0) {
  const [unit, scale] = [["µs", 1], ["ms", 1e3], ["s", 1e6]].findLast(([, least]) => us >= least) ?? ["µs", 1];
  const value = us / scale;
  const exact = scale === 1 ? 0 : scale === 1e3 ? 3 - Math.floor(Math.log10(value)) : 4;
  const digits = Math.min(exact, Math.floor(-Math.log10(errorUs / scale)));
  const place = 10 ** -digits;
  // The last digit is rounded by up to a half anyway.
  const about = errorUs > 10 ** -exact * scale / 2 ? "about " : "";
  if (!about) return `${value.toFixed(exact)} ${unit}`;
  return `${about}${(Math.round(value / place) * place).toFixed(Math.max(0, digits))} ${unit}`;
}

// Returns an address as one number; its lower 52 bits and its upper bits are stored apart.
function addressOf({ address, high }, row) {
  return `0x${(BigInt(high[row]) << 52n | BigInt(address[row])).toString(16)}`;
}

const inCount = (count) => Math.round(count).toLocaleString("en-US");
