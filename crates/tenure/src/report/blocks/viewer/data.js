"use strict";
// Reads the packed columns of the page. `PageData` in `pack.rs` is their layout.

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

  // Reads a list of numbers.
  column(Kind) {
    const count = this.number();
    const column = new Kind(count);
    for (let row = 0; row < count; row++) column[row] = this.number();
    return column;
  }

  // Reads numbers that are stored as differences.
  sums(Kind) {
    let sum = 0;
    return this.column(Kind).map((number) => sum += number);
  }

  signedSums() {
    const count = this.number();
    const column = new Float64Array(count);
    for (let row = 0, sum = 0; row < count; row++) {
      const code = this.number();
      column[row] = sum += code % 2 ? -(code + 1) / 2 : code / 2;
    }
    return column;
  }

  // Reads rows of three numbers, as columns.
  rows(Kind) {
    const count = this.number();
    const columns = [new Kind(count), new Kind(count), new Kind(count)];
    for (let row = 0; row < count; row++) for (const column of columns) column[row] = this.number();
    return columns;
  }

  // Reads numbers that are stored plus one; -1 stands for none.
  optional() {
    return Int32Array.from(this.column(Uint32Array), (number) => number - 1);
  }

  async lives() {
    const born = this.sums(Uint32Array);
    await pause();
    const died = this.column(Uint32Array).map((lived, row) => lived ? born[row] + lived - 1 : NEVER);
    await pause();
    const bytes = this.column(Float64Array);
    await pause();
    const address = this.signedSums();
    await pause();
    const high = this.column(Uint16Array);
    await pause();
    const stream = this.column(Uint32Array);
    await pause();
    const stack = this.optional();
    await pause();
    return { count: born.length, born, died, bytes, address, high, stream, stack, label: this.optional() };
  }
}

async function readData(bytes) {
  const columns = new Columns(bytes);
  const from = columns.number();
  const to = columns.number();
  const earlier = columns.number();
  const strings = Array.from({ length: columns.number() }, () => columns.text());
  const [name, file, line] = columns.rows(Float64Array);
  const stacks = Array.from({ length: columns.number() }, () => columns.column(Uint32Array));
  const streams = [...columns.column(Uint32Array)].map((text) => strings[text]);
  const blocks = await columns.lives();
  await pause();
  const summed = { blocks: columns.number(), event: columns.sums(Uint32Array), bytes: columns.signedSums() };
  summed.count = summed.event.length;
  await pause();
  const segments = await columns.lives();
  const times = { errorUs: columns.number(), event: columns.sums(Uint32Array), us: columns.sums(Float64Array) };
  const marks = { event: columns.sums(Uint32Array), text: [...columns.column(Uint32Array)].map((text) => strings[text]) };
  marks.count = marks.event.length;
  const spans = { from: columns.sums(Uint32Array), to: columns.column(Uint32Array), name: columns.column(Uint32Array) };
  spans.count = spans.from.length;
  for (let span = 0; span < spans.count; span++) spans.to[span] += spans.from[span];
  const [tag, context, pool] = columns.rows(Int32Array).map((texts) => texts.map((text) => text - 1));
  const labels = { count: tag.length, tag, context, pool };
  return { from, to, earlier, strings, frames: { name, file, line }, stacks, streams, blocks, summed, segments, times, marks, spans, labels };
}

// Returns the number of a text of a block's or a segment's label (`kind`: tag, context or pool), or -1.
function labelOf({ labels }, lives, row, kind) {
  return lives.label[row] >= 0 ? labels[kind][lives.label[row]] : -1;
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
