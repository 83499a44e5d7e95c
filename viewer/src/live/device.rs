//! In: a [`Job`]; out: its runs on a device through kiln. Knows neither egui nor threads.

use super::batches::{Batches, vocabulary};
use super::{Backend, Job, Mode, Model, Step};
use crate::model::units;
use kiln::gpu::{AdapterChoice, Profiling, adapters};
use kiln::measure::peak;
use kiln::model::{
    Checkpoint, Dnn, DnnConfig, Drawn, Gptlite, GptliteConfig, Init, Loss, ModelConfig, ParamSource, Vocabulary,
};
use kiln::session::{CompileOptions, Program};
use kiln::trace::{Peaks, Trace};
use kiln::train::{LossScaling, Precision, TrainOptions};
use kiln::trainer::Trainer;
use kiln::{DType, Graph, Session, Tensor};
use std::fmt::Display;

/// kiln on this machine's adapters.
#[derive(Default)]
pub struct Device {
    session: Option<(String, Session, Option<Peaks>)>,
    program: Option<(Kind, Batches)>,
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
        // a training keeps its weights in f32
        let dtype = if job.half && !job.train { DType::F16 } else { DType::F32 };
        let precision = if job.half { Precision::F16(LossScaling::default()) } else { Precision::F32 };
        let training = TrainOptions { precision, ..TrainOptions::default() };
        let profiling = if job.light { Profiling::Light } else { Profiling::Exact };
        let options = CompileOptions { profiling, ..CompileOptions::mode(mode(job.mode)) };
        let make = |graph: &Graph, params: &dyn ParamSource| match job.train {
            true => {
                session.trainer(graph, params, &training, &options).map(|t| Kind::Train(Box::new(t))).map_err(words)
            }
            false => session.compile(graph, params, &options).map(|p| Kind::Run(Box::new(p))).map_err(words),
        };
        // what no memory holds must be refused before it is drawn, and by us where the device's memory is the system's,
        // which promises more than it has
        let new = |graph: &Graph| {
            let had = session.caps().cpu.then(available).flatten();
            fits(graph, job.train, had)?;
            Drawn::new(&graph.layout, Init::Default, 0).map_err(words)
        };
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
        // what it is trained on, if it is
        let text = |graph: &Graph, vocabulary: Option<Vocabulary>| match vocabulary {
            Some(vocabulary) if job.train => Batches::text(graph, &vocabulary),
            _ => Ok(Batches::made(graph)),
        };
        let digits = |graph: &Graph, classes: usize| match job.train {
            true => Batches::digits(graph, classes),
            false => Ok(Batches::made(graph)),
        };
        let (batches, kind) = match job.model {
            Model::Gptlite => {
                let graph = gptlite(GptliteConfig::new(VOCABULARY, job.layers, job.width, job.heads, job.positions))?;
                (text(&graph, Some(vocabulary(VOCABULARY)?))?, make(&graph, &new(&graph)?)?)
            }
            Model::Dnn => {
                let graph = dnn(DnnConfig::square(job.width, job.layers))?;
                (digits(&graph, job.width)?, make(&graph, &new(&graph)?)?)
            }
            Model::Checkpoint => {
                let (graph, batches) = match ModelConfig::open(&job.config).map_err(words)? {
                    ModelConfig::Gptlite(file) => {
                        let graph = gptlite(file.config)?;
                        let batches = text(&graph, file.vocabulary)?;
                        (graph, batches)
                    }
                    ModelConfig::Dnn(file) => {
                        let classes = file.config.out_size;
                        let graph = dnn(file.config)?;
                        let batches = digits(&graph, classes)?;
                        (graph, batches)
                    }
                };
                let checkpoint = Checkpoint::open(&job.weights).map_err(words)?;
                let loaded = checkpoint.load(&graph.layout).map_err(words)?;
                (batches, make(&graph, &loaded)?)
            }
        };
        let mut trace = kind.program().describe();
        trace.title = job.title();
        trace.device.peaks = peaks;
        self.program = Some((kind, batches));
        Ok(trace)
    }
}

/// Bytes of the system's memory that are free, where it says so.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Whether a graph's parameters, in training with their gradients and two moments, find room in so many bytes.
fn fits(graph: &Graph, train: bool, available: Option<u64>) -> Result<(), String> {
    let parameters = graph.layout.iter().map(|(_, s)| (s.shape.elements() * s.dtype.size()) as f64).sum::<f64>();
    let (needed, what) = match train {
        true => (4.0 * parameters, "parameters, gradients and moments take"),
        false => (parameters, "parameters take"),
    };
    match available {
        Some(had) if needed > had as f64 => Err(format!(
            "out of memory: the model's {what} {}, and of this adapter's memory, which is the system's, {} are free; take \
             fewer layers or columns",
            units::bytes(needed),
            units::bytes(had as f64)
        )),
        _ => Ok(()),
    }
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
        let Some((kind, batches)) = &mut self.program else { return Err("nothing is compiled".into()) };
        let inputs = batches.draw();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_larger_than_the_memory_is_refused_with_both_sizes() {
        let graph = Dnn::new(DnnConfig::square(1000, 10)).build(1).unwrap();
        assert_eq!(fits(&graph, false, None), Ok(()));
        assert_eq!(fits(&graph, false, Some(41_000_000)), Ok(()));
        let error = fits(&graph, true, Some(41_000_000)).unwrap_err();
        let (needed, had) = (units::bytes(4.0 * 40_040_000.0), units::bytes(41e6));
        assert_eq!(
            error,
            format!(
                "out of memory: the model's parameters, gradients and moments take {needed}, and of this adapter's memory, \
                 which is the system's, {had} are free; take fewer layers or columns"
            )
        );
    }
}
