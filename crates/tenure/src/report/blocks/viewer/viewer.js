// Connects the canvases, the search and the details of a block.

const find = (id) => document.getElementById(id);

class Viewer {
  constructor(data, history, timeline) {
    Object.assign(this, { data, history, timeline, colors: timeline.colors });
    this.matches = null;
    timeline.show(data, history);
    this.segments = new Segments(find("segments"), data, history, this.colors);
    this.selected = -1;
    const highest = this.history.highest(0, this.history.event.length);
    const cursor = this.history.event[highest] ?? data.from;
    this.timeline.cursor = Math.min(Math.max(cursor, data.from), data.to);
    this.setUp();
    this.recolor();
    this.resize();
  }

  setUp() {
    const colorBy = find("color");
    const has = this.contents();
    for (const kind of ["stack", "tag", "context", "pool"]) if (!has[kind]) colorBy.querySelector(`[value=${kind}]`).remove();
    const searched = [["stack", "stacks"], ["tag", "tags"], ["context", "compile contexts"], ["pool", "pools"], ["span", "annotations"]];
    const names = searched.filter(([kind]) => has[kind]).map(([, name]) => name);
    find("search").placeholder = names.length ? `Search ${names.join(", ")}` : "No stacks were recorded";
    find("search").disabled = names.length === 0;
    if (has.pool) this.setUpPools();
    colorBy.addEventListener("change", () => { this.recolor(); this.draw(); this.drawSegments(); });
    find("search").addEventListener("input", (event) => this.search(event.target.value));
    find("whole").addEventListener("click", () => { this.timeline.reset(); this.draw(); });
    const moment = find("moment");
    [moment.min, moment.max] = [this.data.from, Math.max(this.data.to - 1, this.data.from)];
    moment.addEventListener("input", () => this.setCursor(Number(moment.value)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.recolor();
      this.draw();
      this.drawSegments();
    });
    addEventListener("resize", () => this.resize());
    find("segments").addEventListener("click", (event) => this.select(this.segments.find(event.offsetX, event.offsetY).block ?? -1));
    find("segments").addEventListener("pointermove", (event) => this.hoverSegment(event));
    find("segments").addEventListener("pointerleave", () => { find("tip").hidden = true; });
    this.setUpTimeline(find("timeline"));
  }

  // Returns the kinds of details that the page has about its blocks.
  contents() {
    const { stacks, labels, spans } = this.data;
    const hasText = (kind) => labels[kind].some((text) => text >= 0);
    return { stack: stacks.length > 0, tag: hasText("tag"), context: hasText("context"), pool: hasText("pool"), span: spans.count > 0 };
  }

  // Sets up the choice of one pool whose segments are shown.
  setUpPools() {
    const { labels, strings } = this.data;
    for (const pool of new Set([...labels.pool].filter((text) => text >= 0))) find("pool").append(new Option(strings[pool], pool));
    find("pools").hidden = false;
    find("pool").addEventListener("change", ({ target }) => {
      this.segments.pool = target.value === "" ? undefined : Number(target.value);
      this.drawSegments();
    });
  }

  setUpTimeline(canvas) {
    const { timeline } = this;
    const pointers = new Map();
    let moved = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const factor = 1.0015 ** (event.deltaY || event.deltaX);
      if (event.shiftKey) timeline.zoomBytes(factor, event.offsetY);
      else timeline.zoom(factor, event.offsetX);
      this.draw();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
      if (pointers.size === 1) moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return this.hover(event);
      const now = [event.offsetX, event.offsetY];
      moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
      if (moved < 4) return undefined;
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      pointers.set(event.pointerId, now);
      if (other) {
        const distance = (point) => Math.max(8, Math.hypot(point[0] - other[0], point[1] - other[1]));
        timeline.zoom(distance(before) / distance(now), other[0]);
      } else {
        timeline.move(timeline.from - (timeline.eventAt(now[0]) - timeline.eventAt(before[0])));
        timeline.moveBytes(timeline.low - (timeline.bytesAt(now[1]) - timeline.bytesAt(before[1])));
      }
      return this.draw();
    });
    const release = (event) => {
      const isClick = pointers.size === 1 && moved < 4 && event.type === "pointerup";
      pointers.delete(event.pointerId);
      if (!isClick) return;
      this.point(event.offsetX, event.offsetY);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => { find("tip").hidden = true; });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const { timeline } = this;
    const middle = timeline.xOf((timeline.from + timeline.to) / 2);
    const [events, bytes] = [(timeline.to - timeline.from) / 8, (timeline.high - timeline.low) / 8];
    const actions = {
      "+": () => timeline.zoom(0.7, middle),
      "=": () => timeline.zoom(0.7, middle),
      "-": () => timeline.zoom(1 / 0.7, middle),
      ArrowLeft: () => timeline.move(timeline.from - events),
      ArrowRight: () => timeline.move(timeline.from + events),
      ArrowUp: () => timeline.moveBytes(timeline.low + bytes),
      ArrowDown: () => timeline.moveBytes(timeline.low - bytes),
      Home: () => timeline.reset(),
      Enter: () => this.selectNext(!event.shiftKey),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
    this.draw();
  }

  resize() {
    this.timeline.resize();
    this.draw();
    this.drawSegments();
  }

  recolor() {
    this.colors.choose(this.data, find("color").value, this.matches);
  }

  // Draws once before the next frame, however often it is requested.
  draw() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      const began = performance.now();
      this.isAsked = false;
      this.timeline.draw();
      const canvas = find("timeline");
      canvas.dataset.from = Math.round(this.timeline.from);
      canvas.dataset.to = Math.round(this.timeline.to);
      canvas.dataset.bytes = Math.round(this.timeline.high - this.timeline.low);
      canvas.dataset.drawMs = (performance.now() - began).toFixed(1);
      canvas.dataset.readyMs ??= performance.now().toFixed(0);
    });
  }

  drawSegments() {
    const { cursor } = this.timeline;
    const segments = this.segments.draw(cursor, this.selected);
    const held = segments.reduce((sum, segment) => sum + segment.bytes, 0);
    const used = segments.flatMap((segment) => segment.blocks).reduce((sum, block) => sum + this.data.blocks.bytes[block], 0);
    const rest = this.segments.left ? ` The ${inCount(this.segments.left)} smallest are not drawn.` : "";
    find("held").textContent = segments.length
      ? `At event ${inCount(cursor)} (${this.timeAt(cursor)}): ${inCount(segments.length)} segment${segments.length === 1 ? "" : "s"} of `
        + `${inBytes(held)}, in which the blocks shown take ${inBytes(used)}.${rest}`
      : `No segments are known at event ${inCount(cursor)}.`;
    find("moment").value = cursor;
  }

  setCursor(event) {
    this.timeline.cursor = Math.min(Math.max(event, this.data.from), Math.max(this.data.to - 1, this.data.from));
    this.draw();
    this.drawSegments();
  }

  // Goes to the moment that a column of the timeline shows, and selects what is there.
  point(x, y) {
    const { block, event, summed } = this.timeline.under(x, y);
    this.setCursor(event);
    this.select(block);
    if (summed) find("about").append(element("p", this.aboutSummed(event, summed)));
  }

  // Selects the next live block at the dashed line, upwards or downwards.
  selectNext(isUpwards) {
    this.history.seekEvent(this.timeline.cursor);
    const live = [...this.history.live()];
    const at = live.indexOf(this.selected);
    this.select(live.at(isUpwards ? (at + 1) % live.length : Math.max(at, 0) - 1) ?? -1);
  }

  // Describes the sum of blocks at an event, and how to see the blocks. A shorter part of the history holds fewer
  // blocks, so more of them fit.
  aboutSummed(event, bytes) {
    const { from, to, blocks, summed } = this.data;
    const length = Math.max(2, Math.floor((to - from) * blocks.count / (blocks.count + summed.blocks) / 2));
    const first = Math.max(from, event - Math.floor(length / 2));
    return `At event ${inCount(event)}, ${inBytes(bytes)} are of blocks that this page sums. A page with `
      + `--from ${first} --to ${Math.min(to, first + length)} shows more of them one by one.`;
  }

  select(block) {
    this.selected = this.timeline.selected = block;
    this.describe(block);
    this.draw();
    this.drawSegments();
  }

  hover(event) {
    const span = this.timeline.spanAt(event.offsetX, event.offsetY);
    if (span >= 0) return this.showTip(event, this.aboutSpan(span));
    const { block, summed } = this.timeline.under(event.offsetX, event.offsetY);
    const others = summed ? `${inBytes(summed)} of blocks that this page sums` : "";
    return this.showTip(event, block < 0 ? others : this.inShort(block));
  }

  hoverSegment(event) {
    const { segment, block } = this.segments.find(event.offsetX, event.offsetY);
    if (!segment) return this.showTip(event, "");
    const { segments, streams, strings } = this.data;
    const pool = segment.pool >= 0 ? `, pool ${strings[segment.pool]}` : "";
    const free = `segment ${addressOf(segments, segment.row)}, ${inBytes(segment.bytes)}, stream ${streams[segment.stream]}${pool}`;
    return this.showTip(event, block >= 0 ? this.inShort(block) : free);
  }

  showTip(event, text) {
    const tip = find("tip");
    tip.hidden = !text;
    tip.textContent = text;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 330)}px`;
    tip.style.top = `${event.clientY + 16}px`;
  }

  inShort(block) {
    const { blocks, stacks } = this.data;
    const stack = stacks[blocks.stack[block]];
    const place = stack?.length ? `\n${this.frame(stack[0])}` : "";
    const tag = labelOf(this.data, blocks, block, "tag");
    return `${inBytes(blocks.bytes[block])}, ${this.life(block)}${tag >= 0 ? `\n${this.data.strings[tag]}` : ""}${place}`;
  }

  aboutSpan(span) {
    const { spans, strings } = this.data;
    const [from, to] = [spans.from[span], spans.to[span]];
    return `${strings[spans.name[span]]}\n${to > from ? `events ${inCount(from)} to ${inCount(to - 1)}` : `before event ${inCount(from)}`}`;
  }

  // Returns the names of the annotations that were open at an event, the outer ones first.
  openAt(event) {
    const { spans, strings } = this.data;
    const end = firstAbove(spans.from, event);
    const open = [];
    for (let span = 0; span < end; span++) if (spans.to[span] > event) open.push(strings[spans.name[span]]);
    return open;
  }

  timeAt(event) {
    const { times } = this.data;
    return inTime(timeOf(times, event), times.errorUs);
  }

  // Describes an event and its time, which is known in the shown part.
  when(event) {
    const { from, to, earlier } = this.data;
    if (event < earlier) return "before this history";
    const place = event < from ? "before the shown part" : event >= to ? "after the shown part" : this.timeAt(event);
    return `event ${inCount(event)}, ${place}`;
  }

  // Describes the events of a block's life.
  life(block) {
    const born = this.data.blocks.born[block];
    return born < this.data.earlier ? `from before this history to ${this.end(block)}` : `events ${inCount(born)} to ${this.end(block)}`;
  }

  end(block) {
    const died = this.data.blocks.died[block];
    return died === NEVER ? "the end" : inCount(died);
  }

  frame(number) {
    const { frames, strings } = this.data;
    const line = frames.line[number] ? `:${frames.line[number]}` : "";
    return `${strings[frames.name[number]]}  ${strings[frames.file[number]]}${line}`;
  }

  describe(block) {
    const about = find("about");
    about.replaceChildren();
    if (block < 0) return;
    const { blocks, stacks, streams } = this.data;
    const facts = [
      ["Size", `${inBytes(blocks.bytes[block])} (${inCount(blocks.bytes[block])} bytes)`],
      ["Allocated", this.when(blocks.born[block])],
      ["Freed", blocks.died[block] === NEVER ? "not in this history" : this.when(blocks.died[block])],
      ["Address", addressOf(blocks, block)],
      ["Stream", streams[blocks.stream[block]]],
      ...this.labelFacts(block),
    ];
    const list = document.createElement("dl");
    for (const [name, value] of facts) {
      const fact = document.createElement("div");
      fact.append(element("dt", name), element("dd", value));
      list.append(fact);
    }
    const stack = stacks[blocks.stack[block]];
    const lines = document.createElement("ol");
    for (const frame of stack ?? []) lines.append(element("li", this.frame(frame)));
    about.append(list, stack ? lines : element("p", "No stack was recorded for this block."));
  }

  // Returns the label of a block, and the annotations in which it was allocated, as far as the page has them.
  labelFacts(block) {
    const { blocks, strings, from } = this.data;
    const kinds = [["tag", "Tag"], ["context", "Compile context"], ["pool", "Pool"]];
    const facts = kinds.map(([kind, name]) => [name, strings[labelOf(this.data, blocks, block, kind)]]);
    // The page does not have all annotations from before the shown part.
    const open = blocks.born[block] < from ? [] : this.openAt(blocks.born[block]);
    return [...facts, ["Allocated in", open.join(" › ")]].filter(([, value]) => value);
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = wanted ? this.matching(wanted) : null;
    find("found").textContent = this.matches ? this.sayMatches(this.matches) : "";
    this.recolor();
    this.draw();
    this.drawSegments();
  }

  // Returns for each block whether the text is in a function or file of its stack, in its label, or in the name of an
  // annotation in which it was allocated.
  matching(wanted) {
    const { strings, frames, stacks, blocks, labels } = this.data;
    const inString = strings.map((text) => text.toLowerCase().includes(wanted));
    const inFrame = Array.from(frames.name, (name, frame) => inString[name] || inString[frames.file[frame]]);
    const inStack = stacks.map((stack) => stack.some((frame) => inFrame[frame]));
    const inLabel = Array.from(labels.tag, (tag, label) => inString[tag] || inString[labels.context[label]] || inString[labels.pool[label]]);
    const isInSpan = this.inSpans(inString);
    return Uint8Array.from(blocks.stack, (stack, block) => Number(inStack[stack] || inLabel[blocks.label?.[block]] || isInSpan(blocks.born[block]) || false));
  }

  // Returns a function that says whether an event lies in an annotation whose name is in `inString`.
  inSpans(inString) {
    const { spans } = this.data;
    const [starts, ends] = [[], []];
    for (let span = 0; span < spans.count; span++) {
      if (!inString[spans.name[span]]) continue;
      if (starts.length > 0 && spans.from[span] <= ends.at(-1)) {
        ends[ends.length - 1] = Math.max(ends.at(-1), spans.to[span]);
      } else {
        starts.push(spans.from[span]);
        ends.push(spans.to[span]);
      }
    }
    return (event) => event < ends[firstAbove(starts, event) - 1];
  }

  sayMatches(matches) {
    const { bytes, count } = this.data.blocks;
    let [found, sum, live, most] = [0, 0, 0, 0];
    for (const change of this.history.change) {
      const block = change < 0 ? ~change : change;
      if (block === count || !matches[block]) continue;
      if (change < 0) {
        live -= bytes[block];
      } else {
        found += 1;
        sum += bytes[block];
        live += bytes[block];
        most = Math.max(most, live);
      }
    }
    return `${inCount(found)} blocks of ${inBytes(sum)} together, at most ${inBytes(most)} at once`;
  }
}

function element(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

const isParsed = new Promise((resolve) => addEventListener("DOMContentLoaded", resolve));

// Draws the overview at once, and then reads the blocks, which takes longer the more there are.
async function start() {
  try {
    const overview = new Overview(await inflate(find("overview-data").textContent));
    find("viewer").hidden = false;
    const timeline = new Timeline(find("timeline"), overview, new Colors());
    timeline.resize();
    timeline.draw();
    find("timeline").dataset.firstMs = performance.now().toFixed(0);
    await isParsed;
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    const packed = find("block-data");
    const data = await readData(await inflate(packed.textContent));
    packed.remove();
    const history = await History.of(data);
    find("viewer").inert = false;
    new Viewer(data, history, timeline);
  } catch (error) {
    const why = "This browser cannot show the blocks (it needs DecompressionStream, of 2023 or later): ";
    find("unshown").textContent = why + error.message;
    find("unshown").hidden = false;
  }
}

start();
