//! Times one of the seed's models in meganeura 0.3: one submit a run, with its own attention. Its Adam runs in the step; it
//! has no dropout, so that GPTlite trains without.

#[path = "../../cell.rs"]
mod cell;

use cell::{About, BATCHES, Cell, Job, Parameters, Result, measure};
use meganeura::nn::{Embedding, LayerNorm, Linear};
use meganeura::{CoopPolicy, Graph, Mode, NodeId, Session, SessionConfig, SessionOptions, build};

struct Meganeura<'a> {
    cell: &'a Cell,
    session: Session,
    samples: Vec<Vec<f32>>,
    tokens: Vec<Vec<u32>>,
    labels: Vec<Vec<f32>>,
}

fn linear(g: &mut Graph, name: &str, x: NodeId, inputs: usize, outputs: usize, bias: bool) -> NodeId {
    let layer = if bias { Linear::new(g, name, inputs, outputs) } else { Linear::no_bias(g, name, inputs, outputs) };
    layer.forward(g, x)
}

fn gptlite(g: &mut Graph, c: &Cell) -> NodeId {
    let (e, heads) = (c.width, c.heads as u32);
    let tokens = g.input_u32("tokens", &[c.rows]);
    let embedded = Embedding::new(g, "token_embedding_table.weight", c.vocab, e).forward(g, tokens);
    let positions = g.parameter("position_embedding_table.weight", &[c.rows, e]);
    let mut x = g.add(embedded, positions); // (S, E)
    for i in 0..c.depth {
        let name = |part: &str| format!("blocks.{i}.{part}");
        let y = LayerNorm::new(g, &name("ln1"), e, 1e-5).forward(g, x);
        let [q, k, v] = ["query", "key", "value"].map(|part| linear(g, &name(&format!("sa.{part}")), y, e, e, false));
        let y = g.causal_attention(q, k, v, heads, heads, (e / c.heads) as u32);
        let y = linear(g, &name("sa.proj"), y, e, e, true);
        x = g.add(x, y);
        let y = LayerNorm::new(g, &name("ln2"), e, 1e-5).forward(g, x);
        let y = linear(g, &name("ffwd.net.0"), y, e, 4 * e, true);
        let y = g.relu(y);
        let y = linear(g, &name("ffwd.net.2"), y, 4 * e, e, true);
        x = g.add(x, y);
    }
    let x = LayerNorm::new(g, "ln", e, 1e-5).forward(g, x);
    linear(g, "lm_head", x, e, c.vocab, false) // (S, C)
}

fn dnn(g: &mut Graph, c: &Cell) -> NodeId {
    let mut x = g.input("input", &[c.rows, c.width]);
    for i in 0..c.depth {
        let y = linear(g, &format!("layers.{}", 2 * i), x, c.width, c.width, true);
        x = g.relu(y);
    }
    x
}

/// Gives a session its parameters. meganeura divides scores by the root of a head's width, the seed by that of E: the
/// queries' weights make up for it.
fn fill(session: &mut Session, c: &Cell, parameters: &Parameters) -> Result {
    let names: Vec<String> = session.param_names().into_iter().map(str::to_owned).collect();
    for name in names {
        let part = ["query", "key", "value"].into_iter().find(|p| name.ends_with(&format!("sa.{p}.weight")));
        let values = if let Some(part) = part {
            let block = name.split('.').nth(1).and_then(|b| b.parse().ok()).ok_or("a block has no number")?;
            let scale = if part == "query" { (c.heads as f32).powf(-0.5) } else { 1.0 };
            parameters.heads(c, block, part)?.into_iter().map(|w| w * scale).collect()
        } else if name.ends_with(".weight") && !name.contains("ln") && !name.contains("embedding_table")
            || name == "lm_head.weight"
        {
            parameters.transposed(&name)?
        } else {
            parameters.vector(&name)?
        };
        session.set_parameter(&name, &values);
    }
    Ok(())
}

impl<'a> Meganeura<'a> {
    fn new(cell: &'a Cell) -> Result<Self> {
        let mut g = Graph::new();
        let out = if cell.gptlite() { gptlite(&mut g, cell) } else { dnn(&mut g, cell) };
        if cell.train {
            let labels = g.input("labels", &[cell.rows, cell.classes()]);
            let probabilities = g.softmax(out);
            let loss = g.cross_entropy_loss(probabilities, labels);
            g.set_outputs(vec![loss]);
        } else {
            g.set_outputs(vec![out]);
        }
        let coop = if cell.precision == "f32" { CoopPolicy::Disabled } else { CoopPolicy::Auto };
        let config = SessionConfig {
            mode: if cell.train { Mode::Training } else { Mode::Inference },
            runtime: SessionOptions { coop, ..SessionOptions::default() },
            ..SessionConfig::default()
        };
        let (mut session, _) = build(&g, config);
        fill(&mut session, cell, &cell.parameters()?)?;
        if cell.train {
            session.set_adam(2e-4, 0.5, 0.5, 1e-8);
        }
        let one_hot = |batch| {
            let mut labels = vec![0.0; cell.rows * cell.classes()];
            cell.targets(batch)
                .iter()
                .enumerate()
                .for_each(|(row, c)| labels[row * cell.classes() + *c as usize] = 1.0);
            labels
        };
        Ok(Meganeura {
            cell,
            session,
            samples: if cell.gptlite() { Vec::new() } else { (0..BATCHES).map(|b| cell.samples(b)).collect() },
            tokens: if cell.gptlite() { (0..BATCHES).map(|b| cell.tokens(b)).collect() } else { Vec::new() },
            labels: if cell.train { (0..BATCHES).map(one_hot).collect() } else { Vec::new() },
        })
    }

    fn about(&mut self) -> About {
        let device = self.session.device_information();
        About {
            program: "meganeura 0.3.0",
            adapter: device.device_name.clone(),
            driver: format!("{} {}", device.driver_name, device.driver_info),
            peak_mib: Some(self.session.memory_summary().total_allocated_bytes() as f64 / f64::from(1 << 20)),
            dispatches: Some(self.session.plan().dispatches.len()),
            note: (self.cell.train && self.cell.gptlite()).then_some("without dropout, which meganeura does not have"),
        }
    }
}

impl Job for Meganeura<'_> {
    /// `Session::step` waits for the one before.
    const IN_FLIGHT: bool = false;

    fn place(&mut self, batch: usize) -> Result {
        if let Some(tokens) = self.tokens.get(batch) {
            self.session.set_input_u32("tokens", tokens);
        }
        if let Some(samples) = self.samples.get(batch) {
            self.session.set_input("input", samples);
        }
        if let Some(labels) = self.labels.get(batch) {
            self.session.set_input("labels", labels);
        }
        Ok(())
    }

    fn start(&mut self) -> Result {
        self.session.step();
        Ok(())
    }

    fn wait(&mut self) -> Result {
        self.session.wait();
        Ok(())
    }

    fn loss(&mut self) -> Result<Option<f32>> {
        Ok(self.cell.train.then(|| self.session.read_loss()))
    }
}

fn main() -> Result {
    let cell = Cell::from_args()?;
    measure(&cell, || Meganeura::new(&cell), Meganeura::about)
}
