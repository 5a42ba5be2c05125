// The canvas of the segments at one moment: each to scale, with its blocks.

const ROW = 22;
const BAR = 16;
const GAP = 6;
const ROWS = 400;

class Segments {
  constructor(canvas, data, history, colors) {
    Object.assign(this, { canvas, data, history, colors, drawn: [], left: 0 });
  }

  // Returns the segments at a moment, the largest first; of one pool if `this.pool` has its number. Ranges that touch
  // count as one, as in an expandable segment.
  at(event) {
    const { segments } = this.data;
    const live = [];
    for (let row = 0; row < segments.count && segments.born[row] <= event; row++) {
      if (segments.died[row] > event) live.push(row);
    }
    live.sort((one, other) => segments.address[one] - segments.address[other]);
    const joined = [];
    for (const row of live) {
      const [address, bytes, stream] = [segments.address[row], segments.bytes[row], segments.stream[row]];
      const last = joined.at(-1);
      const grows = document.getElementById("viewer").dataset.expandable === "true";
      const pool = labelOf(this.data, segments, row, "pool");
      const touches = last && last.address + last.bytes === address && last.stream === stream && last.pool === pool;
      if (grows && touches) last.bytes += bytes;
      else joined.push({ row, address, bytes, stream, pool, blocks: [] });
    }
    this.placeBlocks(joined, event);
    const shown = this.pool === undefined ? joined : joined.filter((segment) => segment.pool === this.pool);
    return shown.sort((one, other) => other.bytes - one.bytes || one.address - other.address);
  }

  placeBlocks(segments, event) {
    const { address } = this.data.blocks;
    this.history.seekEvent(event);
    const blocks = [...this.history.live()].sort((one, other) => address[one] - address[other]);
    let row = 0;
    for (const block of blocks) {
      while (row < segments.length && segments[row].address + segments[row].bytes <= address[block]) row++;
      if (row < segments.length && segments[row].address <= address[block]) segments[row].blocks.push(block);
    }
  }

  draw(event, selected) {
    const segments = this.at(event);
    const ratio = Math.min(2, devicePixelRatio || 1);
    const width = this.canvas.clientWidth;
    const scale = width / (segments[0]?.bytes || 1);
    this.drawn = [];
    // The largest come first; a smaller one takes the first row that has room.
    const ends = [];
    for (const segment of segments) {
      const length = Math.max(2, segment.bytes * scale);
      let row = ends.findIndex((end) => end + length <= width);
      if (row < 0) row = ends.push(0) - 1;
      if (row >= ROWS) break;
      this.drawn.push({ segment, x: ends[row], y: row * ROW, length });
      ends[row] += length + GAP;
    }
    const height = Math.max(1, Math.min(ends.length, ROWS)) * ROW;
    this.left = segments.length - this.drawn.length;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.drawn.forEach((place) => this.drawSegment(context, place, selected));
    return segments;
  }

  drawSegment(context, { segment, x, y, length }, selected) {
    const { blocks } = this.data;
    const { colors } = this;
    context.fillStyle = colors.isByPool && segment.pool >= 0 ? css(mixed(colors.ofText(segment.pool), colors.ground, 0.7)) : colors.line;
    context.fillRect(x, y, length, BAR);
    const scale = length / segment.bytes;
    for (const block of segment.blocks) {
      const start = x + (blocks.address[block] - segment.address) * scale;
      const wide = Math.max(0.5, blocks.bytes[block] * scale);
      context.fillStyle = block === selected ? colors.textCss : css(colors.block[block]);
      context.fillRect(start, y, wide > 3 ? wide - 0.7 : wide, BAR);
    }
  }

  // Returns the segment and the block under a point.
  find(x, y) {
    const place = this.drawn.find((at) => x >= at.x && x <= at.x + at.length && y >= at.y && y < at.y + BAR);
    if (!place) return {};
    const { blocks } = this.data;
    const address = place.segment.address + ((x - place.x) / place.length) * place.segment.bytes;
    const holds = (block) => address >= blocks.address[block] && address < blocks.address[block] + blocks.bytes[block];
    return { segment: place.segment, block: place.segment.blocks.find(holds) ?? -1 };
  }
}
