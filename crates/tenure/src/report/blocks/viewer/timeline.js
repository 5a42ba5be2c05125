// The canvas of all blocks over time. A column of pixels shows the moment at which most was live during its events.

const LEFT = 66;
const BOTTOM = 24;
const TOP = 16;
// The height of a row of annotations in pixels, and the number of rows.
const LANE = 15;
const LANES = 6;
// The least bytes from the bottom to the top.
const LEAST_BYTES = 1000;

class Timeline {
  constructor(canvas, overview, colors) {
    Object.assign(this, { canvas, overview, colors });
    this.data = { from: overview.from, to: overview.to, marks: { count: 0 }, spans: { count: 0 } };
    this.lanes = [];
    this.peak = overview.peak || 1;
    this.cursor = -1;
    this.selected = -1;
    this.reset();
  }

  // Shows the blocks in place of the overview.
  show(data, history) {
    Object.assign(this, { data, history, overview: null });
    this.peak = history.height.reduce((most, bytes) => Math.max(most, bytes), 0) || 1;
    this.lanes = lanesOf(data.spans);
    this.canvas.style.height = `calc(27rem + ${this.lanes.length * LANE}px)`;
    this.reset();
  }

  reset() {
    this.from = this.data.from;
    this.to = Math.max(this.data.to, this.data.from + 1);
    this.low = 0;
    this.high = this.peak * 1.04;
  }

  resize() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.ratio = ratio;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    this.width = Math.max(1, this.canvas.width - LEFT * ratio);
    this.height = Math.max(1, this.canvas.height - (BOTTOM + TOP + this.lanes.length * LANE) * ratio);
  }

  eventAt(x) {
    return this.from + ((x - LEFT) * this.ratio / this.width) * (this.to - this.from);
  }

  bytesAt(y) {
    return this.low + (1 - (y - TOP) * this.ratio / this.height) * (this.high - this.low);
  }

  zoom(factor, x) {
    const anchor = this.eventAt(x);
    const length = Math.max(4, (this.to - this.from) * factor);
    this.move(anchor - (anchor - this.from) * (length / (this.to - this.from)), length);
  }

  zoomBytes(factor, y) {
    const anchor = this.bytesAt(y);
    const length = Math.min(this.peak * 1.04, Math.max(LEAST_BYTES, (this.high - this.low) * factor));
    this.moveBytes(anchor - (anchor - this.low) * (length / (this.high - this.low)), length);
  }

  move(from, length = this.to - this.from) {
    const whole = Math.max(1, this.data.to - this.data.from);
    length = Math.min(length, whole);
    this.from = Math.min(Math.max(from, this.data.from), this.data.from + whole - length);
    this.to = this.from + length;
  }

  moveBytes(low, length = this.high - this.low) {
    this.low = Math.min(Math.max(low, 0), this.peak * 1.04 - length);
    this.high = this.low + length;
  }

  // Returns what is under a point of the canvas: the event of its column's moment, and a block, or -1 and the bytes of
  // the sum of other blocks.
  under(x, y) {
    const { history, data } = this;
    const column = Math.floor((x - LEFT) * this.ratio);
    const bytes = this.bytesAt(y);
    if (column < 0 || column >= this.width) return { block: -1, event: Math.floor(this.eventAt(x)), summed: 0 };
    const drawn = this.drawn?.[column] ?? column;
    const shown = this.shown(drawn, this.drawn?.lastIndexOf(drawn) - drawn + 1 || 1);
    const event = Math.max(history.event[shown] ?? data.from, Math.floor(this.edge(drawn)));
    history.seek(shown);
    let sum = 0;
    for (const block of bytes < 0 ? [] : history.live()) {
      sum += data.blocks.bytes[block];
      if (sum > bytes) return { block, event, summed: 0 };
    }
    const summed = history.summed[shown] ?? 0;
    return { block: -1, event, summed: bytes >= 0 && sum + summed > bytes ? summed : 0 };
  }

  // Returns the event at the left edge of a column.
  edge(column) {
    return this.from + (column / this.width) * (this.to - this.from);
  }

  // Returns the change whose moment a column shows.
  shown(column, width = 1) {
    const first = firstAbove(this.history.event, Math.ceil(this.edge(column)) - 1);
    const end = firstAbove(this.history.event, Math.ceil(this.edge(column + width)) - 1);
    return end > first ? this.history.highest(first, end) : first - 1;
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.overview) {
      const tall = this.height * (this.peak / this.high);
      this.overview.draw(context, this.colors, LEFT * this.ratio, TOP * this.ratio + this.height - tall, this.width, tall);
    } else {
      this.drawBlocks(context);
    }
    this.drawFrame(context);
  }

  drawBlocks(context) {
    const image = context.createImageData(Math.floor(this.width), Math.floor(this.height));
    const pixels = new Uint32Array(image.data.buffer);
    const { width, height } = image;
    // For each column, the first column that shows the same moment.
    this.drawn = new Int32Array(width);
    let wide = 1;
    let painted = -2;
    let passed = 0;
    for (let column = 0; column < width; column += wide) {
      const shown = this.shown(column, wide);
      this.drawn.fill(column, column, column + wide);
      if (shown !== painted) {
        this.history.seek(shown);
        passed += this.paint(pixels, width, height, column);
        // If very many blocks are live at once, columns become wider, so that drawing stays fast.
        if (passed > 8e6 && wide < 8) [wide, passed] = [wide * 2, 0];
      } else {
        for (let at = column; at < pixels.length; at += width) pixels[at] = pixels[at - 1];
      }
      painted = shown;
      for (let copy = column + 1; copy < Math.min(column + wide, width); copy++) {
        for (let at = copy; at < pixels.length; at += width) pixels[at] = pixels[at - 1];
      }
    }
    context.putImageData(image, LEFT * this.ratio, TOP * this.ratio);
  }

  // Fills a column; returns how many blocks it passed.
  paint(pixels, width, height, column) {
    const { after, at, blocks, summed } = this.history;
    const { block: colors, ground, grey } = this.colors;
    const anchor = blocks.count;
    const scale = height / (this.high - this.low);
    let [sum, row, passed] = [-this.low, 0, 0];
    const fill = (bytes, color) => {
      sum += bytes;
      const end = Math.min(height, Math.round(sum * scale));
      const start = row;
      for (; row < end; row++) pixels[(height - 1 - row) * width + column] = color;
      // A line between blocks that are tall enough for one.
      if (end - start > 3) pixels[(height - end) * width + column] = mixed(color, ground, 0.35);
    };
    for (let block = after[anchor]; block !== anchor && row < height; block = after[block]) {
      fill(blocks.bytes[block], block === this.selected ? this.colors.text : colors[block]);
      passed++;
    }
    if (at >= 0) fill(summed[at], grey);
    return passed + 50;
  }

  drawFrame(context) {
    const { ratio, width, height, colors } = this;
    context.save();
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    const [right, bottom] = [LEFT + width / ratio, TOP + height / ratio];
    context.fillStyle = colors.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.strokeStyle = colors.line;
    context.globalAlpha = 0.6;
    const steps = round((this.high - this.low) / 5);
    for (let bytes = Math.ceil(this.low / steps) * steps; bytes <= this.high; bytes += steps) {
      const y = bottom - ((bytes - this.low) / (this.high - this.low)) * (bottom - TOP);
      context.globalAlpha = 1;
      context.fillText(inBytes(bytes), LEFT - 6, y);
      context.globalAlpha = 0.45;
      line(context, LEFT, y, right, y);
    }
    context.globalAlpha = 1;
    context.textBaseline = "top";
    const events = Math.max(1, round((this.to - this.from) / 6));
    let free = 0;
    for (let event = Math.ceil(this.from / events) * events; event <= this.to; event += events) {
      const x = this.xOf(event);
      line(context, x, bottom, x, bottom + 4);
      context.textAlign = "left";
      const wide = context.measureText(inCount(event)).width;
      const start = Math.max(LEFT, Math.min(x - wide / 2, right - wide));
      if (start < free) continue;
      context.fillText(inCount(event), start, bottom + 7);
      free = start + wide + 8;
    }
    this.drawMarks(context, bottom);
    this.drawSpans(context, bottom + BOTTOM, right);
    context.restore();
  }

  // Draws the annotations below the axis, inner ones below outer ones.
  drawSpans(context, top, right) {
    const { spans, strings } = this.data;
    context.save();
    context.beginPath();
    context.rect(LEFT, top, right - LEFT, this.lanes.length * LANE);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const [lane, rows] of this.lanes.entries()) {
      let drawn = -1;
      for (const [place, span] of rows.entries()) {
        const [start, end] = [this.xOf(spans.from[span]), this.xOf(spans.to[span])];
        // If several annotations share a pixel, the first is drawn.
        if (end < Math.max(LEFT, drawn) || start > right) continue;
        const [x, wide] = [Math.max(LEFT, start), Math.max(1.5, Math.min(right, end) - Math.max(LEFT, start))];
        drawn = x + Math.max(1.5, wide);
        context.fillStyle = css(mixed(this.colors.ofText(spans.name[span]), this.colors.ground, 0.55));
        context.fillRect(x, top + lane * LANE, wide > 3 ? wide - 1 : wide, LANE - 2);
        // A name may extend to the right until the next annotation.
        const next = place + 1 < rows.length ? this.xOf(spans.from[rows[place + 1]]) : right;
        const room = Math.min(right, next) - x - 8;
        if (room < 12) continue;
        context.fillStyle = this.colors.textCss;
        context.fillText(fitting(context, strings[spans.name[span]], room), x + 4, top + lane * LANE + (LANE - 2) / 2 + 0.5);
      }
    }
    context.restore();
  }

  // Returns the annotation under a point, or -1.
  spanAt(x, y) {
    const { spans } = this.data;
    const lane = Math.floor((y - (TOP + this.height / this.ratio + BOTTOM)) / LANE);
    return this.lanes[lane]?.find((span) => x >= this.xOf(spans.from[span]) - 1 && x <= this.xOf(spans.to[span]) + 1) ?? -1;
  }

  drawMarks(context, bottom) {
    const { marks } = this.data;
    let free = 0;
    context.textAlign = "left";
    for (let mark = 0; mark < marks.count; mark++) {
      const x = this.xOf(marks.event[mark]);
      if (marks.event[mark] < this.from || marks.event[mark] > this.to) continue;
      context.strokeStyle = context.fillStyle = marks.text[mark].startsWith("oom") ? this.colors.bad : this.colors.muted;
      line(context, x, TOP, x, bottom);
      if (x < free) continue;
      context.fillText(marks.text[mark], x + 3, 1);
      free = x + 10 + context.measureText(marks.text[mark]).width;
    }
    if (this.cursor >= this.from && this.cursor <= this.to) {
      context.strokeStyle = this.colors.cursor;
      context.setLineDash([4, 3]);
      line(context, this.xOf(this.cursor), TOP, this.xOf(this.cursor), bottom);
    }
  }

  xOf(event) {
    return LEFT + ((event - this.from) / (this.to - this.from)) * (this.width / this.ratio);
  }
}

// Assigns annotations to rows without overlaps. Annotations that fit into no row are not drawn.
function lanesOf(spans) {
  const lanes = [];
  const ends = [];
  for (let span = 0; span < spans.count; span++) {
    const free = ends.findIndex((end) => end <= spans.from[span]);
    const lane = free < 0 ? ends.length : free;
    if (lane === LANES) continue;
    (lanes[lane] ??= []).push(span);
    ends[lane] = Math.max(spans.to[span], spans.from[span] + 1);
  }
  return lanes;
}

// Returns as much of a text as fits into `width`.
function fitting(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = Math.floor((text.length * width) / context.measureText(text).width);
  while (length > 0 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

// Returns the nearest number not below `step` that is 1, 2 or 5 times a power of ten.
function round(step) {
  const power = 10 ** Math.floor(Math.log10(step || 1));
  return power * [1, 2, 5, 10].find((times) => times * power >= step * 0.999);
}
