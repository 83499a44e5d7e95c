//! In: a [`Job`]; out: its runs on a device through kiln. Knows neither egui nor threads.

use super::{Backend, Job, Mode, Model, Step};
use kiln::gpu::{AdapterChoice, adapters};
use kiln::graph::{DROPOUT_COUNTER, Op};
use kiln::measure::peak;
use kiln::model::{Checkpoint, Dnn, DnnConfig, Gptlite, GptliteConfig, Init, Loss, ModelConfig, ParamSource, init};
use kiln::session::{CompileOptions, Program};
use kiln::trace::{Peaks, Trace};
use kiln::train::TrainOptions;
use kiln::trainer::Trainer;
use kiln::{DType, Graph, Session, Tensor};
use std::fmt::Display;

/// kiln on this machine's adapters.
#[derive(Default)]
pub struct Device {
    session: Option<(String, Session, Option<Peaks>)>,
    program: Option<(Kind, Vec<(String, Tensor)>)>,
}

/// What a step does.
enum Kind {
    Run(Box<Program>),
    Train(Box<Trainer>),
}

impl Kind {
    fn program(&self) -> &Program {
        match self {
            Kind::Run(program) => program,
            Kind::Train(trainer) => trainer.program(),
        }
    }
}

/// Characters of a GPTlite with new parameters.
const VOCABULARY: usize = 65;

fn words(error: impl Display) -> String {
    error.to_string()
}

fn mode(mode: Mode) -> kiln::Mode {
    match mode {
        Mode::Eager => kiln::Mode::Eager,
        Mode::Recorded => kiln::Mode::Recorded,
        Mode::Fused => kiln::Mode::Fused,
    }
}

impl Device {
    /// The session of an adapter, opened once.
    fn session(&mut self, adapter: &str) -> Result<(Session, Option<Peaks>), String> {
        if let Some((_, session, peaks)) = self.session.as_ref().filter(|(name, ..)| name == adapter) {
            return Ok((session.clone(), *peaks));
        }
        let choice = if adapter.is_empty() { AdapterChoice::Best } else { AdapterChoice::Named(adapter.into()) };
        let session = Session::open_blocking(&choice).map_err(words)?;
        let peaks: Peaks = peak(&session).map_err(words)?.into();
        self.session = Some((adapter.into(), session.clone(), Some(peaks)));
        Ok((session, Some(peaks)))
    }

    fn compile(&mut self, job: &Job) -> Result<Trace, String> {
        let (session, peaks) = self.session(&job.adapter)?;
        let dtype = if job.half { DType::F16 } else { DType::F32 };
        let options = CompileOptions::mode(mode(job.mode));
        let make = |graph: &Graph, params: &dyn ParamSource| match job.train {
            true => session
                .trainer(graph, params, &TrainOptions::default(), &options)
                .map(|t| Kind::Train(Box::new(t)))
                .map_err(words),
            false => session.compile(graph, params, &options).map(|p| Kind::Run(Box::new(p))).map_err(words),
        };
        let new = |graph: &Graph| init(&graph.layout, Init::Default, 0).map_err(words);
        let gptlite = |config: GptliteConfig| {
            let positions = if job.model == Model::Checkpoint { config.block_size } else { job.positions };
            let model = Gptlite::new(config).with_dtype(dtype);
            let graph = match job.train {
                true => model.build_training(job.batch, positions, Loss::CrossEntropy),
                false => model.build(job.batch, positions),
            };
            graph.map_err(words)
        };
        let dnn = |config: DnnConfig| {
            let model = Dnn::new(config).with_dtype(dtype);
            let graph = match job.train {
                true => model.build_training(job.batch, Loss::CrossEntropy),
                false => model.build(job.batch),
            };
            graph.map_err(words)
        };
        let (graph, kind) = match job.model {
            Model::Gptlite => {
                let graph = gptlite(GptliteConfig::new(VOCABULARY, job.layers, job.width, job.heads, job.positions))?;
                let kind = make(&graph, &new(&graph)?)?;
                (graph, kind)
            }
            Model::Dnn => {
                let graph = dnn(DnnConfig::square(job.width, job.layers))?;
                let kind = make(&graph, &new(&graph)?)?;
                (graph, kind)
            }
            Model::Checkpoint => {
                let graph = match ModelConfig::open(&job.config).map_err(words)? {
                    ModelConfig::Gptlite(file) => gptlite(file.config)?,
                    ModelConfig::Dnn(file) => dnn(file.config)?,
                };
                let checkpoint = Checkpoint::open(&job.weights).map_err(words)?;
                let loaded = checkpoint.load(&graph.layout).map_err(words)?;
                let kind = make(&graph, &loaded)?;
                (graph, kind)
            }
        };
        let mut trace = kind.program().describe();
        trace.title = job.title();
        trace.device.peaks = peaks;
        self.program = Some((kind, inputs(&graph)));
        Ok(trace)
    }
}

/// Numbers that are not all alike; indices stay below every bound.
fn inputs(graph: &Graph) -> Vec<(String, Tensor)> {
    let bounds = graph.index_bounds();
    let input = |(id, node): (kiln::graph::NodeId, &kiln::graph::Node)| {
        let ty = node.outputs[0].clone();
        let least = bounds.iter().filter(|b| b.0 == id).map(|b| b.1.count).min();
        let value = |i: usize| match least {
            Some(bound) => (i * 7 % bound.max(1)) as f64,
            None if ty.dtype.is_integer() => 0.0,
            None => ((i * 7919 % 2003) as f64 - 1001.0) / 578.0,
        };
        let values: Vec<f64> = (0..ty.shape.elements()).map(value).collect();
        (node.name.clone(), Tensor::from_f64(ty, &values))
    };
    // the counter of dropout is the trainer's to give
    let given = |(id, n): &(kiln::graph::NodeId, &kiln::graph::Node)| {
        n.op == Op::Input && !graph.is_state(*id) && n.name != DROPOUT_COUNTER
    };
    graph.nodes().filter(given).map(input).collect()
}

impl Backend for Device {
    fn adapters(&mut self) -> Result<Vec<String>, String> {
        Ok(pollster::block_on(adapters()).into_iter().map(|a| a.name).collect())
    }

    fn open(&mut self, job: &Job) -> Result<Trace, String> {
        self.program = None;
        self.compile(job).inspect_err(|_| {
            // a lost device stays lost
            self.session = None;
        })
    }

    fn step(&mut self) -> Result<Step, String> {
        let Some((kind, inputs)) = &self.program else { return Err("nothing is compiled".into()) };
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let step = match kind {
            Kind::Run(program) => program.profile(&given).map(|(_, frame)| Step { frame, loss: None }),
            Kind::Train(trainer) => {
                trainer.profile(&given).map(|(report, frame)| Step { frame, loss: Some(f64::from(report.loss)) })
            }
        };
        step.map_err(|error| {
            self.program = None;
            self.session = None;
            error.to_string()
        })
    }
}
