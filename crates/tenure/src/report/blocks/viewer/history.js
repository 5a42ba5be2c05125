// The live blocks at every moment, in the order in which they are stacked.
//
// Blocks are numbered in the order in which they were made, and are stacked in that order: a freed block is removed,
// and the blocks above it move down. The live ones form a linked list, which is moved from change to change.
// Checkpoints of the list make every moment quick to reach.

const CHECKPOINTS = 64;

class History {
  static async of({ blocks, summed }) {
    const history = new History(blocks);
    const deaths = history.deaths();
    await pause();
    history.merge(deaths, summed);
    await pause();
    await history.makeCheckpoints();
    return history;
  }

  constructor(blocks) {
    this.blocks = blocks;
    this.after = new Int32Array(blocks.count + 1);
    this.before = new Int32Array(blocks.count + 1);
  }

  // Merges all changes into one order.
  merge(deaths, summed) {
    const { blocks } = this;
    const most = blocks.count + deaths.length + summed.count;
    this.event = new Uint32Array(most);
    // A block that is made, the complement of one that is freed, or `blocks.count` where only the sum changes.
    this.change = new Int32Array(most);
    this.summed = new Float64Array(most);
    this.height = new Float64Array(most);
    let [born, died, step, kept, others] = [0, 0, 0, 0, 0];
    for (let at = 0; at < most; at++) {
      const madeAt = born < blocks.count ? blocks.born[born] : Infinity;
      const freedAt = died < deaths.length ? blocks.died[deaths[died]] : Infinity;
      const stepAt = step < summed.count ? summed.event[step] : Infinity;
      this.event[at] = Math.min(madeAt, freedAt, stepAt);
      if (freedAt <= madeAt && freedAt <= stepAt) {
        kept -= blocks.bytes[deaths[died]];
        this.change[at] = ~deaths[died++];
      } else if (madeAt <= stepAt) {
        kept += blocks.bytes[born];
        this.change[at] = born++;
      } else {
        others = summed.bytes[step++];
        this.change[at] = blocks.count;
      }
      this.summed[at] = others;
      this.height[at] = kept + others;
    }
  }

  // Returns the freed blocks, in the order of their frees.
  deaths() {
    const { count, died } = this.blocks;
    const shift = 2 ** 21;
    const keys = new Float64Array(count);
    for (let block = 0; block < count; block++) keys[block] = died[block] * shift + block;
    keys.sort();
    const end = firstAbove(keys, NEVER * shift - 1);
    return Uint32Array.from(keys.subarray(0, end), (key) => key % shift);
  }

  async makeCheckpoints() {
    this.spacing = Math.max(1, Math.ceil(this.change.length / CHECKPOINTS));
    this.checkpoints = [];
    this.restore([]);
    for (let at = 0; at < this.change.length; at++) {
      if (at % this.spacing === 0) {
        await pause();
        this.checkpoints.push(Int32Array.from(this.live()));
      }
      this.step();
    }
  }

  // Restores the list to these live blocks, after change `at`. Its anchor is the number after the last block's.
  restore(live, at = -1) {
    const anchor = this.blocks.count;
    let last = anchor;
    for (const block of live) {
      this.after[last] = block;
      this.before[block] = last;
      last = block;
    }
    this.after[last] = anchor;
    this.before[anchor] = last;
    this.at = at;
  }

  step() {
    const { after, before } = this;
    const anchor = this.blocks.count;
    const change = this.change[++this.at];
    if (change < 0) {
      const block = ~change;
      after[before[block]] = after[block];
      before[after[block]] = before[block];
    } else if (change < anchor) {
      const last = before[anchor];
      after[last] = change;
      before[change] = last;
      after[change] = anchor;
      before[anchor] = change;
    }
  }

  // Goes to the moment after change `at`; -1 is before the first.
  seek(at) {
    const checkpoint = Math.max(0, Math.floor(at / this.spacing));
    if (at < this.at || checkpoint * this.spacing > this.at + 1) {
      this.restore(this.checkpoints[checkpoint] ?? [], checkpoint * this.spacing - 1);
    }
    while (this.at < at) this.step();
  }

  seekEvent(event) {
    this.seek(firstAbove(this.event, event) - 1);
  }

  // Yields the live blocks, the lowest first.
  *live() {
    const anchor = this.blocks.count;
    for (let block = this.after[anchor]; block !== anchor; block = this.after[block]) yield block;
  }

  // Returns the change from `from` to before `to` after which most bytes are live.
  highest(from, to) {
    let best = from;
    for (let at = from + 1; at < to; at++) if (this.height[at] > this.height[best]) best = at;
    return best;
  }
}
