//! The workloads on candle. BERT is that of `candle-transformers`. The models that it has for evaluation only (ResNet)
//! or not at all (GPT-2) are written here with the layers of `candle-nn`.

use anyhow::Result;
use candle_core::{D, DType, Device, IndexOp, Module, ModuleT, Tensor};
use candle_nn::{
    AdamW, BatchNorm, Conv2d, Conv2dConfig, Embedding, LayerNorm, LayerNormConfig, Linear, Optimizer, ParamsAdamW, SGD,
    VarBuilder, VarMap, loss, ops,
};
use candle_transformers::models::bert::{BertModel, Config as BertConfig};

use crate::{BERT_TOKENS, CLASSES, GPT2_TOKENS, IMAGES, SIDE, Step, Workload};

pub(crate) fn workload(workload: Workload) -> Result<Step> {
    let variables = VarMap::new();
    let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    Ok(match workload {
        Workload::Resnet18Train => {
            let model = ResNet::new(&builder)?;
            let (images, labels) = images()?;
            let mut optimizer = SGD::new(variables.all_vars(), 0.01)?;
            Box::new(move || {
                let loss = loss::cross_entropy(&model.forward(&images, true)?, &labels)?;
                Ok(optimizer.backward_step(&loss)?)
            })
        }
        Workload::Resnet18Infer => {
            let model = ResNet::new(&builder)?;
            let (images, _) = images()?;
            Box::new(move || {
                model.forward(&images, false)?;
                Ok(())
            })
        }
        Workload::BertInfer => {
            let config = BertConfig::default();
            // From tensors, since candle would keep a graph for variables.
            let weights = VarBuilder::from_backend(Box::new(variables), DType::F32, Device::Cpu);
            let model = BertModel::load(weights, &config)?;
            let tokens = tokens(BERT_TOKENS, config.vocab_size)?;
            let types = tokens.zeros_like()?;
            Box::new(move || {
                model.forward(&tokens, &types, None)?;
                Ok(())
            })
        }
        Workload::Gpt2Train => {
            let model = Gpt2::new(&builder)?;
            let tokens = tokens(GPT2_TOKENS, VOCABULARY)?;
            let targets = tokens.flatten_all()?;
            let mut optimizer = AdamW::new(variables.all_vars(), ParamsAdamW { lr: 1e-4, ..Default::default() })?;
            Box::new(move || {
                let logits = model.forward(&tokens)?.flatten(0, 1)?;
                Ok(optimizer.backward_step(&loss::cross_entropy(&logits, &targets)?)?)
            })
        }
    })
}

fn images() -> Result<(Tensor, Tensor)> {
    let images = Tensor::randn(0f32, 1.0, (IMAGES, 3, SIDE, SIDE), &Device::Cpu)?;
    let labels = (0..IMAGES).map(|index| (index % CLASSES) as i64);
    Ok((images, Tensor::from_iter(labels, &Device::Cpu)?))
}

fn tokens(sizes: (usize, usize), vocabulary: usize) -> Result<Tensor> {
    Ok(Tensor::from_vec(crate::tokens(sizes, vocabulary), sizes, &Device::Cpu)?)
}

struct ResNet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    classifier: Linear,
}

impl ResNet {
    fn new(builder: &VarBuilder) -> candle_core::Result<Self> {
        let stem = ConvNorm::new(3, 64, 7, 2, builder.pp("stem"))?;
        let mut blocks = Vec::new();
        let mut channels = 64;
        for (stage, width) in [64, 128, 256, 512].into_iter().enumerate() {
            for index in 0..2 {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                blocks.push(Block::new(channels, width, stride, builder.pp(format!("{stage}.{index}")))?);
                channels = width;
            }
        }
        Ok(Self { stem, blocks, classifier: candle_nn::linear(512, CLASSES, builder.pp("fc"))? })
    }

    fn forward(&self, images: &Tensor, training: bool) -> candle_core::Result<Tensor> {
        // candle has no backward for overlapping windows: 2 x 2 replaces 3 x 3, which is less work.
        let mut x = self.stem.forward(images, training)?.relu()?.max_pool2d(2)?;
        for block in &self.blocks {
            x = block.forward(&x, training)?;
        }
        self.classifier.forward(&x.mean(D::Minus1)?.mean(D::Minus1)?)
    }
}

struct Block {
    first: ConvNorm,
    second: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl Block {
    fn new(inputs: usize, outputs: usize, stride: usize, builder: VarBuilder) -> candle_core::Result<Self> {
        let shortcut = (stride != 1 || inputs != outputs)
            .then(|| ConvNorm::new(inputs, outputs, 1, stride, builder.pp("shortcut")))
            .transpose()?;
        Ok(Self {
            first: ConvNorm::new(inputs, outputs, 3, stride, builder.pp("first"))?,
            second: ConvNorm::new(outputs, outputs, 3, 1, builder.pp("second"))?,
            shortcut,
        })
    }

    fn forward(&self, x: &Tensor, training: bool) -> candle_core::Result<Tensor> {
        let y = self.second.forward(&self.first.forward(x, training)?.relu()?, training)?;
        let shortcut = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x, training)?,
            None => x.clone(),
        };
        (y + shortcut)?.relu()
    }
}

struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
        builder: VarBuilder,
    ) -> candle_core::Result<Self> {
        let config = Conv2dConfig { stride, padding: kernel / 2, ..Default::default() };
        Ok(Self {
            conv: candle_nn::conv2d_no_bias(inputs, outputs, kernel, config, builder.pp("conv"))?,
            norm: candle_nn::batch_norm(outputs, 1e-5, builder.pp("norm"))?,
        })
    }

    fn forward(&self, x: &Tensor, training: bool) -> candle_core::Result<Tensor> {
        self.norm.forward_t(&self.conv.forward(x)?, training)
    }
}

const VOCABULARY: usize = 50257;
const POSITIONS: usize = 1024;
const WIDTH: usize = 768;
const HEADS: usize = 12;
const LAYERS: usize = 12;

struct Gpt2 {
    words: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

impl Gpt2 {
    fn new(builder: &VarBuilder) -> candle_core::Result<Self> {
        Ok(Self {
            words: candle_nn::embedding(VOCABULARY, WIDTH, builder.pp("wte"))?,
            positions: candle_nn::embedding(POSITIONS, WIDTH, builder.pp("wpe"))?,
            layers: (0..LAYERS).map(|index| Layer::new(builder.pp(index))).collect::<candle_core::Result<_>>()?,
            norm: layer_norm(builder.pp("ln_f"))?,
        })
    }

    fn forward(&self, tokens: &Tensor) -> candle_core::Result<Tensor> {
        let length = tokens.dim(1)?;
        let mut x = self.words.forward(tokens)?.broadcast_add(&self.positions.embeddings().i(..length)?)?;
        let mask: Vec<f32> = (0..length * length)
            .map(|index| if index % length > index / length { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        let mask = Tensor::from_vec(mask, (length, length), &Device::Cpu)?;
        for layer in &self.layers {
            x = layer.forward(&x, &mask)?;
        }
        self.norm.forward(&x)?.broadcast_matmul(&self.words.embeddings().t()?)
    }
}

struct Layer {
    norm_1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    norm_2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(builder: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self {
            norm_1: layer_norm(builder.pp("ln_1"))?,
            qkv: candle_nn::linear(WIDTH, 3 * WIDTH, builder.pp("qkv"))?,
            projection: candle_nn::linear(WIDTH, WIDTH, builder.pp("projection"))?,
            norm_2: layer_norm(builder.pp("ln_2"))?,
            up: candle_nn::linear(WIDTH, 4 * WIDTH, builder.pp("up"))?,
            down: candle_nn::linear(4 * WIDTH, WIDTH, builder.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> candle_core::Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norm_1.forward(x)?)?;
        let head = |index: usize| {
            let part = qkv.narrow(D::Minus1, index * WIDTH, WIDTH)?;
            part.reshape((batch, length, HEADS, WIDTH / HEADS))?.transpose(1, 2)?.contiguous()
        };
        let scores = (head(0)?.matmul(&head(1)?.t()?)? * ((WIDTH / HEADS) as f64).powf(-0.5))?;
        let weights = ops::softmax(&scores.broadcast_add(mask)?, D::Minus1)?;
        let heads = weights.matmul(&head(2)?)?.transpose(1, 2)?.reshape((batch, length, WIDTH))?;
        let x = (x + self.projection.forward(&heads)?)?;
        let up = self.up.forward(&self.norm_2.forward(&x)?)?.gelu()?;
        &x + self.down.forward(&up)?
    }
}

fn layer_norm(builder: VarBuilder) -> candle_core::Result<LayerNorm> {
    candle_nn::layer_norm(WIDTH, LayerNormConfig::default(), builder)
}
