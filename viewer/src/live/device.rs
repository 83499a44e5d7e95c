//! In: a [`Job`]; out: its runs on a device through kiln. Knows neither egui nor threads.

use super::{Backend, Job, Mode, Model};
use kiln::gpu::{AdapterChoice, adapters};
use kiln::graph::Op;
use kiln::measure::peak;
use kiln::model::{Checkpoint, Dnn, DnnConfig, Gptlite, GptliteConfig, Init, ModelConfig, ParamSource, init};
use kiln::session::{CompileOptions, Program};
use kiln::trace::{Frame, Peaks, Trace};
use kiln::{DType, Graph, Session, Tensor};
use std::fmt::Display;

/// kiln on this machine's adapters.
#[derive(Default)]
pub struct Device {
    session: Option<(String, Session, Option<Peaks>)>,
    program: Option<(Program, Vec<(String, Tensor)>)>,
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
        let compile = |graph: &Graph, params: &dyn ParamSource| session.compile(graph, params, &options).map_err(words);
        let new = |graph: &Graph| init(&graph.layout, Init::Default, 0).map_err(words);
        let gptlite = |config: GptliteConfig| {
            let positions = if job.model == Model::Checkpoint { config.block_size } else { job.positions };
            Gptlite::new(config).with_dtype(dtype).build(job.batch, positions).map_err(words)
        };
        let (graph, program) = match job.model {
            Model::Gptlite => {
                let graph = gptlite(GptliteConfig::new(VOCABULARY, job.layers, job.width, job.heads, job.positions))?;
                let program = compile(&graph, &new(&graph)?)?;
                (graph, program)
            }
            Model::Dnn => {
                let config = DnnConfig::square(job.width, job.layers);
                let graph = Dnn::new(config).with_dtype(dtype).build(job.batch).map_err(words)?;
                let program = compile(&graph, &new(&graph)?)?;
                (graph, program)
            }
            Model::Checkpoint => {
                let graph = match ModelConfig::open(&job.config).map_err(words)? {
                    ModelConfig::Gptlite(file) => gptlite(file.config)?,
                    ModelConfig::Dnn(file) => {
                        Dnn::new(file.config).with_dtype(dtype).build(job.batch).map_err(words)?
                    }
                };
                let checkpoint = Checkpoint::open(&job.weights).map_err(words)?;
                let loaded = checkpoint.load(&graph.layout).map_err(words)?;
                let program = compile(&graph, &loaded)?;
                (graph, program)
            }
        };
        let mut trace = program.describe();
        trace.title = job.title();
        trace.device.peaks = peaks;
        self.program = Some((program, inputs(&graph)));
        Ok(trace)
    }
}

/// Numbers that are not all alike; indices stay below every bound.
fn inputs(graph: &Graph) -> Vec<(String, Tensor)> {
    let bounds = graph.index_bounds();
    let input = |(id, node): (kiln::graph::NodeId, &kiln::graph::Node)| {
        let ty = node.outputs[0].clone();
        let least = bounds.iter().filter(|b| b.0 == id).map(|b| b.1).min();
        let value = |i: usize| match least {
            Some(bound) => (i * 7 % bound.max(1)) as f64,
            None if ty.dtype.is_integer() => 0.0,
            None => ((i * 7919 % 2003) as f64 - 1001.0) / 578.0,
        };
        let values: Vec<f64> = (0..ty.shape.elements()).map(value).collect();
        (node.name.clone(), Tensor::from_f64(ty, &values))
    };
    graph.nodes().filter(|(id, n)| n.op == Op::Input && !graph.is_state(*id)).map(input).collect()
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

    fn step(&mut self) -> Result<Frame, String> {
        let Some((program, inputs)) = &self.program else { return Err("nothing is compiled".into()) };
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        match program.profile(&given) {
            Ok((_, frame)) => Ok(frame),
            Err(error) => {
                self.program = None;
                self.session = None;
                Err(error.to_string())
            }
        }
    }
}
