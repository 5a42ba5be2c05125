// The overview: the whole history, drawn before any block is read. `overview.rs` describes its layout.

class Overview {
  constructor(bytes) {
    const columns = new Columns(bytes);
    [this.height, this.peak, this.from, this.to, this.hasStacks, this.width] = Array.from({ length: 6 }, () => columns.number());
    this.colors = new Uint32Array(this.width * this.height);
    this.isFilled = new Uint8Array(this.colors.length);
    for (let column = 0; column < this.width; column++) {
      let row = this.height - 1;
      for (let runs = columns.number(); runs > 0; runs--) {
        let rows = columns.number();
        const color = columns.number();
        for (; rows > 0; rows--, row--) {
          this.colors[row * this.width + column] = color;
          this.isFilled[row * this.width + column] = 1;
        }
      }
    }
  }

  // Draws the picture into a rectangle of `context`.
  draw(context, colors, ...rectangle) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.max(1, this.width), this.height];
    const image = new ImageData(canvas.width, canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    const ofColor = (color) => {
      if (color === 0) return colors.grey;
      return this.hasStacks ? colors.ofStack(color - 1) : colors.sizes[color - 1];
    };
    for (let at = 0; at < pixels.length; at++) if (this.isFilled[at]) pixels[at] = ofColor(this.colors[at]);
    canvas.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, ...rectangle);
  }
}
