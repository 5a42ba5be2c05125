// Colours in two forms: as the pixels of a canvas (alpha, blue, green, red), and as CSS.

const CLASSES = [65536, 1048576, 10485760, 67108864, 268435456];

class Colors {
  constructor() {
    this.readPage();
  }

  readPage() {
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(name).trim();
    const pixel = (name) => fromHex(named(name));
    this.isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    Object.assign(this, {
      ground: pixel("--ground"), grey: pixel("--requested"), text: pixel("--text"), textCss: named("--text"),
      muted: named("--muted"), line: named("--line"), bad: named("--native"), cursor: named("--text"),
    });
    this.sizes = CLASSES.concat(0).map((_, index) => pixel(`--size${index}`));
    this.streams = Array.from({ length: 8 }, (_, index) => pixel(`--stream${index}`));
  }

  // Returns the colour of a stack, by its number in the page.
  ofStack(number) {
    return ofHue(number, this.isDark);
  }

  // Returns the colour of a label's text, by its number in the page; grey if there is none.
  ofText(number) {
    return number < 0 ? this.grey : ofHue(number, this.isDark);
  }

  // Colours every block by `by`: its stack, size, stream, or a text of its label. `matches` dims the others.
  choose(data, by, matches) {
    const { blocks, stacks, labels } = data;
    this.readPage();
    this.isByPool = by === "pool";
    const { bytes, stream, stack, count } = blocks;
    const { sizes, streams, isDark } = this;
    const ofStacks = stacks.map((_, index) => this.ofStack(index));
    this.block = new Uint32Array(count);
    for (let block = 0; block < count; block++) {
      let color = this.grey;
      if (by === "stream") color = streams[Math.min(7, stream[block])];
      else if (by === "stack" && stack[block] >= 0) color = ofStacks[stack[block]];
      else if (labels[by]) color = this.ofText(labelOf(data, blocks, block, by));
      else if (by === "block") color = ofHue(block, isDark);
      else if (by === "size") color = sizes[(CLASSES.findIndex((upper) => bytes[block] <= upper) + 6) % 6];
      this.block[block] = matches && !matches[block] ? mixed(color, this.ground, 0.82) : color;
    }
  }
}

function fromHex(text) {
  const value = parseInt(text.slice(1), 16);
  return (0xff000000 | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

// With the golden ratio, the hues of neighbouring numbers differ most.
function ofHue(index, isDark) {
  const hue = (index * 0.618034 + 0.55) % 1;
  const lightness = (isDark ? 0.5 : 0.62) + 0.08 * ((index * 7) % 3 - 1);
  const part = (shift) => {
    const at = (shift + hue * 12) % 12;
    const depth = 0.5 * Math.min(lightness, 1 - lightness);
    return Math.round(255 * (lightness - depth * Math.max(-1, Math.min(at - 3, 9 - at, 1))));
  };
  return (0xff000000 | (part(4) << 16) | (part(8) << 8) | part(0)) >>> 0;
}

function mixed(color, other, share) {
  const part = (shift) => Math.round(((color >> shift) & 255) * (1 - share) + ((other >> shift) & 255) * share);
  return (0xff000000 | (part(16) << 16) | (part(8) << 8) | part(0)) >>> 0;
}

const css = (color) => `rgb(${color & 255} ${(color >> 8) & 255} ${(color >> 16) & 255})`;
