//! Times one of the seed's models in burn 0.22 over Vulkan, with fusion and autotune on. Attention has one linear each for
//! the queries, keys and values of all heads; inference takes burn's own attention, training, which drops weights, writes
//! it out.

#[path = "../../cell.rs"]
mod cell;

use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::{relu, softmax};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, DeviceKind, Int, Tensor, TensorData};
use cell::{About, BATCHES, Cell, Job, Parameters, Result, measure};

const DROPOUT: f64 = 0.1;

#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    proj: Linear,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Block {
    ln1: LayerNorm,
    attention: Attention,
    ln2: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Gptlite {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    ln: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct Dnn {
    layers: Vec<Linear>,
}

#[derive(Module, Debug)]
struct Model {
    gptlite: Option<Gptlite>,
    dnn: Option<Dnn>,
}

fn matrix(values: Vec<f32>, shape: [usize; 2], device: &Device) -> Param<Tensor<2>> {
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}

fn vector(values: Vec<f32>, device: &Device) -> Param<Tensor<1>> {
    let shape = [values.len()];
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}

/// A linear whose weight, (in, out) in burn, is given.
fn linear(weight: Vec<f32>, bias: Option<Vec<f32>>, [inputs, outputs]: [usize; 2], device: &Device) -> Linear {
    let mut layer = LinearConfig::new(inputs, outputs).with_bias(bias.is_some()).init(device);
    layer.weight = matrix(weight, [inputs, outputs], device);
    layer.bias = bias.map(|b| vector(b, device));
    layer
}

fn named(p: &Parameters, name: &str, bias: bool, sizes: [usize; 2], device: &Device) -> Result<Linear> {
    let bias = if bias { Some(p.vector(&format!("{name}.bias"))?) } else { None };
    Ok(linear(p.transposed(&format!("{name}.weight"))?, bias, sizes, device))
}

fn norm(p: &Parameters, name: &str, width: usize, device: &Device) -> Result<LayerNorm> {
    let mut layer = LayerNormConfig::new(width).with_epsilon(1e-5).init(device);
    layer.gamma = vector(p.vector(&format!("{name}.weight"))?, device);
    layer.beta = Some(vector(p.vector(&format!("{name}.bias"))?, device));
    Ok(layer)
}

impl Model {
    fn new(c: &Cell, device: &Device) -> Result<Model> {
        let p = c.parameters()?;
        if !c.gptlite() {
            let layer = |i| named(&p, &format!("layers.{}", 2 * i), true, [c.width; 2], device);
            let layers = (0..c.depth).map(layer).collect::<Result<_>>()?;
            return Ok(Model { gptlite: None, dnn: Some(Dnn { layers }) });
        }
        let e = c.width;
        let dropout = || DropoutConfig::new(DROPOUT).init();
        let table = |name: &str, rows: usize| -> Result<Embedding> {
            let mut table = EmbeddingConfig::new(rows, e).init(device);
            table.weight = matrix(p.vector(name)?, [rows, e], device);
            Ok(table)
        };
        let block = |i: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{i}.{part}");
            let of_heads =
                |part: &str| Ok::<_, Box<dyn std::error::Error>>(linear(p.heads(c, i, part)?, None, [e; 2], device));
            Ok(Block {
                ln1: norm(&p, &name("ln1"), e, device)?,
                attention: Attention {
                    query: of_heads("query")?,
                    key: of_heads("key")?,
                    value: of_heads("value")?,
                    proj: named(&p, &name("sa.proj"), true, [e; 2], device)?,
                    dropout: dropout(),
                },
                ln2: norm(&p, &name("ln2"), e, device)?,
                up: named(&p, &name("ffwd.net.0"), true, [e, 4 * e], device)?,
                down: named(&p, &name("ffwd.net.2"), true, [4 * e, e], device)?,
                dropout: dropout(),
            })
        };
        let gptlite = Gptlite {
            tokens: table("token_embedding_table.weight", c.vocab)?,
            positions: table("position_embedding_table.weight", c.rows)?,
            blocks: (0..c.depth).map(block).collect::<Result<_>>()?,
            ln: norm(&p, "ln", e, device)?,
            head: named(&p, "lm_head", false, [e, c.vocab], device)?,
        };
        Ok(Model { gptlite: Some(gptlite), dnn: None })
    }

    /// Scores of each row's classes.
    fn forward(&self, c: &Cell, batch: &Batch) -> Tensor<2> {
        match (&self.gptlite, &self.dnn) {
            (Some(gptlite), _) => gptlite.forward(c, batch),
            (None, Some(dnn)) => dnn.layers.iter().fold(batch.samples.clone(), |x, layer| relu(layer.forward(x))),
            (None, None) => unreachable!("a model is one of both"),
        }
    }
}

impl Gptlite {
    fn forward(&self, c: &Cell, batch: &Batch) -> Tensor<2> {
        let (s, e) = (c.rows, c.width);
        let mut x = self.tokens.forward(batch.tokens.clone()) + self.positions.forward(batch.positions.clone());
        for block in &self.blocks {
            let y = block.attention.forward(block.ln1.forward(x.clone()), c, &batch.mask);
            x = x + y;
            let y = block.up.forward(block.ln2.forward(x.clone()));
            x = x + block.dropout.forward(block.down.forward(relu(y)));
        }
        self.head.forward(self.ln.forward(x).reshape([s, e]))
    }
}

impl Attention {
    fn forward(&self, x: Tensor<3>, c: &Cell, mask: &Tensor<4, Bool>) -> Tensor<3> {
        let (s, e, heads) = (c.rows, c.width, c.heads);
        let split = |y: Tensor<3>| y.reshape([1, s, heads, e / heads]).swap_dims(1, 2); // (1, H, S, D)
        let [q, k, v] = [&self.query, &self.key, &self.value].map(|layer| split(layer.forward(x.clone())));
        let scale = (e as f64).powf(-0.5);
        let out = if c.train {
            let scores = q.matmul(k.transpose()) * scale;
            let weights = softmax(scores.mask_fill(mask.clone(), f32::NEG_INFINITY), 3);
            self.dropout.forward(weights).matmul(v)
        } else {
            attention(
                q,
                k,
                v,
                None,
                None,
                AttentionModuleOptions { scale: Some(scale), softcap: None, is_causal: true },
            )
        };
        self.dropout.forward(self.proj.forward(out.swap_dims(1, 2).reshape([1, s, e])))
    }
}

/// What a run reads; GPTlite's or a DNN's are of one number in the other.
struct Batch {
    samples: Tensor<2>,
    tokens: Tensor<2, Int>,
    positions: Tensor<2, Int>,
    targets: Tensor<1, Int>,
    /// Positions that a query does not see.
    mask: Tensor<4, Bool>,
}

impl Batch {
    fn new(c: &Cell, index: usize, device: &Device) -> Batch {
        let integers = |values: Vec<u32>| {
            let values: Vec<i32> = values.into_iter().map(|v| v as i32).collect();
            TensorData::new(values.clone(), [values.len()])
        };
        let row =
            |values: Vec<u32>| -> Tensor<2, Int> { Tensor::<1, Int>::from_data(integers(values), device).unsqueeze() };
        let (samples, shape) = if c.gptlite() { (vec![0.0], [1, 1]) } else { (c.samples(index), [c.rows, c.width]) };
        let positions = if c.gptlite() { (0..c.rows as u32).collect() } else { vec![0] };
        let side = if c.gptlite() && c.train { c.rows } else { 1 };
        Batch {
            samples: Tensor::from_data(TensorData::new(samples, shape), device),
            tokens: row(if c.gptlite() { c.tokens(index) } else { vec![0] }),
            positions: row(positions),
            targets: Tensor::from_data(integers(c.targets(index)), device),
            mask: Tensor::<2, Bool>::tril_mask([side, side], 0, device).unsqueeze(),
        }
    }
}

struct Burn<'a> {
    cell: &'a Cell,
    device: Device,
    model: Option<Model>,
    optimizer: ModuleOptimizer,
    batches: Vec<Batch>,
    batch: usize,
    loss: Option<Tensor<1>>,
    /// Keeps the last run's result alive until the next one.
    out: Option<Tensor<2>>,
}

impl<'a> Burn<'a> {
    fn new(cell: &'a Cell) -> Result<Self> {
        let plain = Device::vulkan(DeviceKind::default());
        let device = if cell.train { plain.autodiff() } else { plain };
        let model = Model::new(cell, &device)?;
        let batches = (0..BATCHES).map(|i| Batch::new(cell, i, &device)).collect();
        let optimizer = AdamConfig::new().with_beta_1(0.5).with_beta_2(0.5).with_epsilon(1e-8).init();
        Ok(Burn { cell, device, model: Some(model), optimizer, batches, batch: 0, loss: None, out: None })
    }

    fn about(&mut self) -> About {
        let usage = self.device.memory_pool_usage();
        About {
            program: "burn 0.22.1",
            adapter: self.device.identity().map_or_else(String::new, |i| format!("{i:?}")),
            driver: String::new(),
            peak_mib: usage.map(|u| u.bytes_reserved as f64 / f64::from(1 << 20)),
            dispatches: None,
            note: None,
        }
    }
}

impl Job for Burn<'_> {
    const IN_FLIGHT: bool = true;

    fn place(&mut self, batch: usize) -> Result {
        self.batch = batch;
        Ok(())
    }

    fn start(&mut self) -> Result {
        let batch = &self.batches[self.batch];
        let model = self.model.take().ok_or("a step did not end")?;
        if !self.cell.train {
            self.out = Some(model.forward(self.cell, batch));
            self.model = Some(model);
            self.device.flush()?;
            return Ok(());
        }
        let probabilities = softmax(model.forward(self.cell, batch), 1);
        let loss = CrossEntropyLossConfig::new().init(&self.device).forward(probabilities, batch.targets.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(2e-4, model, gradients));
        self.loss = Some(loss);
        self.device.flush()?;
        Ok(())
    }

    fn wait(&mut self) -> Result {
        Ok(self.device.sync()?)
    }

    fn loss(&mut self) -> Result<Option<f32>> {
        Ok(self.loss.clone().map(|loss| loss.into_scalar()))
    }
}

fn main() -> Result {
    let cell = Cell::from_args()?;
    measure(&cell, || Burn::new(&cell), Burn::about)
}
