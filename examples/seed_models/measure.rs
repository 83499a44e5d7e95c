//! In: a program or a trainer with what a run is given; out: what a run takes. Knows nothing of models.

use crate::models::{Batch, Work};
use kiln::gpu::Profiling;
use kiln::graph::{DROPOUT_COUNTER, DType, TensorType};
use kiln::session::{CompileOptions, DeviceTensor, Outputs, Program, Run, Session};
use kiln::tensor::Tensor;
use kiln::trace::{Frame, Stats, Trace, stats};
use kiln::train::{SCALARS, TrainOptions};
use kiln::trainer::{Steps, Trainer};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

/// A compiled model, ready to be timed.
pub struct Job {
    kind: Kind,
    batches: Vec<Batch>,
    /// What each batch keeps on the device.
    resident: Vec<Vec<(&'static str, DeviceTensor)>>,
    /// Reading it waits for what was copied before.
    fence: DeviceTensor,
}

enum Kind {
    Infer(Box<Program>),
    Train(Box<Trainer>),
}

enum InFlight<'a> {
    Run(Run<'a>),
    Steps(Steps<'a>),
}

/// What a run takes.
pub struct Times {
    /// From the call that submits a run to its end. Each waits for the one before, and what its batch keeps on the device
    /// is where it reads it.
    pub walls: Stats,
    /// Per run of several in flight, milliseconds.
    pub pipelined_ms: f64,
    /// First kernel's begin to last kernel's end of one run with few stamps, milliseconds; `None` without timestamps.
    pub gpu_ms: Option<f64>,
    pub submits: u64,
    pub host_us: f64,
}

/// A run that was waited for.
pub struct Waited {
    /// From the call that submits it to its end.
    pub wall_ms: f64,
    /// What the host took of that to start it.
    pub host_us: f64,
    pub submits: u64,
}

/// What a run takes that is timed in one of the ways of [`TIMED`], milliseconds.
pub struct Cost {
    /// A run of several in flight, where the host's part is hidden.
    pub in_flight: f64,
    /// From submit to done of one run.
    pub alone: f64,
    /// The host's part of a run.
    pub host: f64,
    /// First kernel's begin to last kernel's end, by the stamps.
    pub stamped: Option<f64>,
    /// Compute passes of a run.
    pub passes: u64,
    /// Dispatches and groups of them that have a time of their own.
    pub timed: usize,
}

/// The ways of timing whose cost is measured, none first.
pub const TIMED: [Option<Profiling>; 3] = [None, Some(Profiling::Light), Some(Profiling::Exact)];

/// How long a model is run before it is timed, at least, with runs in flight: a GPU that idled while weights were drawn has
/// low clocks, and keeps them for seconds if each run is waited for.
const WARM_UP: Duration = Duration::from_secs(1);

/// Runs in flight at once while a model warms up or the cost of timestamps is measured.
const IN_FLIGHT: usize = 8;

impl Job {
    /// A forward pass.
    pub fn infer(
        session: &Session,
        work: Work,
        params: &BTreeMap<String, Tensor>,
        options: &CompileOptions,
    ) -> Result<Job, Box<dyn Error>> {
        Job::new(session, Kind::Infer(Box::new(session.compile(&work.graph, params, options)?)), work.batches)
    }

    /// Training steps.
    pub fn train(
        session: &Session,
        work: Work,
        params: &BTreeMap<String, Tensor>,
        train: &TrainOptions,
        options: &CompileOptions,
    ) -> Result<Job, Box<dyn Error>> {
        let trainer = session.trainer(&work.graph, params, train, options)?;
        Job::new(session, Kind::Train(Box::new(trainer)), work.batches)
    }

    fn new(session: &Session, kind: Kind, batches: Vec<Batch>) -> Result<Job, Box<dyn Error>> {
        let upload = |batch: &Batch| {
            let tensors = batch.resident.iter().map(|(name, value)| Ok((*name, session.upload(value)?)));
            tensors.collect::<Result<Vec<_>, kiln::Error>>()
        };
        let resident = batches.iter().map(upload).collect::<Result<_, _>>()?;
        let job = Job { kind, batches, resident, fence: session.upload(&Tensor::i32([1], &[0]))? };
        job.place(0)?;
        Ok(job)
    }

    /// Copies what a batch keeps on the device to where runs read it, and waits until it is there.
    fn place(&self, run: usize) -> Result<(), Box<dyn Error>> {
        for (name, value) in &self.resident[run % self.resident.len()] {
            self.program().copy_state(name, value)?;
        }
        self.fence.read()?;
        Ok(())
    }

    /// Batches take turns.
    fn batch(&self, run: usize) -> &Batch {
        &self.batches[run % self.batches.len()]
    }

    pub fn program(&self) -> &Program {
        match &self.kind {
            Kind::Infer(program) => program,
            Kind::Train(trainer) => trainer.program(),
        }
    }

    fn given(&self, run: usize) -> Vec<(&str, &Tensor)> {
        self.batch(run).given.iter().map(|(name, tensor)| (*name, tensor)).collect()
    }

    /// The first run, its outputs and what it took.
    pub fn first(&self) -> Result<(Outputs, Times), Box<dyn Error>> {
        let begin = Instant::now();
        let (outputs, submits, host_us) = match &self.kind {
            Kind::Infer(program) => {
                let run = program.submit(&self.given(0))?;
                let (submits, host) = (run.submits(), run.host_ns());
                (run.wait()?, submits, host as f64 / 1e3)
            }
            Kind::Train(trainer) => {
                let steps = trainer.submit_all(&[self.given(0)])?;
                let (submits, host) = (steps.run().submits(), steps.run().host_ns());
                let loss = steps.wait()?[0].loss;
                let outputs = Outputs::from([("loss".to_owned(), Tensor::f32([1], &[loss]))]);
                (outputs, submits, host as f64 / 1e3)
            }
        };
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        Ok((outputs, Times { walls: of_ms(&[ms]), pipelined_ms: ms, gpu_ms: None, submits, host_us }))
    }

    /// Runs that each wait for the one before.
    pub fn waited(&self, runs: usize) -> Result<Vec<Waited>, Box<dyn Error>> {
        (0..runs).map(|i| self.waited_for(i)).collect()
    }

    fn waited_for(&self, run: usize) -> Result<Waited, Box<dyn Error>> {
        self.place(run)?;
        let begin = Instant::now();
        let run = self.start(run)?;
        let (host_us, submits) = (run.run().host_ns() as f64 / 1e3, run.run().submits());
        run.wait()?;
        Ok(Waited { wall_ms: begin.elapsed().as_secs_f64() * 1e3, host_us, submits })
    }

    /// A third as many runs as are to be timed, and more until [`WARM_UP`] is over: in flight, as many as take a quarter of
    /// it but at most [`IN_FLIGHT`].
    fn warm_up(&self, runs: usize) -> Result<(), Box<dyn Error>> {
        let one = self.waited_for(0)?.wall_ms / 1e3;
        let together = (WARM_UP.as_secs_f64() / 4.0 / one).clamp(1.0, IN_FLIGHT as f64) as usize;
        let (begin, mut run) = (Instant::now(), 1);
        while run < runs / 3 || begin.elapsed() < WARM_UP {
            let flight = (0..together).map(|i| self.start(run + i)).collect::<Result<Vec<_>, _>>()?;
            flight.into_iter().try_for_each(InFlight::wait)?;
            run += together;
        }
        Ok(())
    }

    /// Some runs after others that warm up, and then two with timestamps: the first has one at each dispatch, which takes
    /// up to twice as long, and is printed if asked.
    pub fn measure(&self, runs: usize, kernels: bool) -> Result<Times, Box<dyn Error>> {
        self.warm_up(runs)?;
        let waited = self.waited(runs)?;
        let begin = Instant::now();
        let mut last = None;
        for i in 0..runs {
            last = Some(self.start(i)?);
        }
        if let Some(run) = last {
            run.wait()?;
        }
        let pipelined_ms = begin.elapsed().as_secs_f64() * 1e3 / runs as f64;
        let each = self.trace()?;
        if kernels {
            print!("{each}");
        }
        let gpu_ms = self.trace()?.gpu_stats().map(|s| s.median / 1e6);
        let walls = of_ms(&waited.iter().map(|w| w.wall_ms).collect::<Vec<_>>());
        let host_us = median(&waited.iter().map(|w| w.host_us).collect::<Vec<_>>());
        let submits = waited.last().map_or(0, |w| w.submits);
        Ok(Times { walls, pipelined_ms, gpu_ms, submits, host_us })
    }

    /// What timestamps cost: medians over rounds that time runs in each way of [`TIMED`] by turns, after some that warm up.
    pub fn profile_cost(&self, rounds: usize) -> Result<[Cost; 3], Box<dyn Error>> {
        let own = self.own();
        let mut given = self.given(0);
        given.extend(own.iter().map(|(name, tensor)| (*name, tensor)));
        let program = self.program();
        let start = |how: Option<Profiling>| match how {
            Some(how) => program.submit_profiled(&given, how),
            None => program.submit_unread(&given),
        };
        let mut samples = [const { Samples::new() }; 3];
        let warming = (rounds / 3).max(1);
        for round in 0..warming + rounds {
            // each way is first as often as the others
            for which in (0..3).map(|i| (round + i) % 3) {
                let begin = Instant::now();
                let run = start(TIMED[which])?;
                let host = run.host_ns() as f64 / 1e6;
                let frame = run.wait_profiled()?.1;
                let alone = begin.elapsed().as_secs_f64() * 1e3;
                let begin = Instant::now();
                let runs: Vec<Run<'_>> = (0..IN_FLIGHT).map(|_| start(TIMED[which])).collect::<Result<_, _>>()?;
                for run in runs {
                    run.wait()?;
                }
                let in_flight = begin.elapsed().as_secs_f64() * 1e3 / IN_FLIGHT as f64;
                if round >= warming {
                    samples[which].add(in_flight, alone, host, frame);
                }
            }
        }
        Ok(samples.map(Samples::cost))
    }

    /// Outputs of a forward pass stay on the device; a step gives its loss.
    fn start(&self, run: usize) -> Result<InFlight<'_>, Box<dyn Error>> {
        Ok(match &self.kind {
            Kind::Infer(program) => InFlight::Run(program.submit_unread(&self.given(run))?),
            Kind::Train(trainer) => InFlight::Steps(trainer.submit_all(&[self.given(run)])?),
        })
    }

    fn trace(&self) -> Result<Trace, Box<dyn Error>> {
        let given = self.given(0);
        match &self.kind {
            Kind::Infer(program) => Ok(program.trace(&given)?.1),
            Kind::Train(trainer) => {
                let (_, frame) = trainer.profile(&given)?;
                Ok(Trace { frames: vec![frame], ..trainer.program().describe() })
            }
        }
    }

    /// What a trainer gives beside the batch; nothing for a forward pass.
    fn own(&self) -> Vec<(&'static str, Tensor)> {
        match &self.kind {
            Kind::Infer(_) => Vec::new(),
            Kind::Train(trainer) => own_inputs(trainer),
        }
    }
}

/// Runs that are timed in one way.
struct Samples {
    in_flight: Vec<f64>,
    alone: Vec<f64>,
    host: Vec<f64>,
    stamped: Vec<f64>,
    last: Option<Frame>,
}

impl Samples {
    const fn new() -> Samples {
        Samples { in_flight: Vec::new(), alone: Vec::new(), host: Vec::new(), stamped: Vec::new(), last: None }
    }

    fn add(&mut self, in_flight: f64, alone: f64, host: f64, frame: Frame) {
        self.in_flight.push(in_flight);
        self.alone.push(alone);
        self.host.push(host);
        self.stamped.extend(frame.gpu_ns().map(|ns| ns as f64 / 1e6));
        self.last = Some(frame);
    }

    fn cost(self) -> Cost {
        let last = self.last.unwrap_or_default();
        let in_groups = last.shared.iter().map(|(first, last)| last - first).sum::<usize>();
        Cost {
            in_flight: median(&self.in_flight),
            alone: median(&self.alone),
            host: median(&self.host),
            stamped: (!self.stamped.is_empty()).then(|| median(&self.stamped)),
            passes: last.passes,
            timed: last.times.iter().flatten().count() - in_groups,
        }
    }
}

/// What a trainer gives to its next step beside the batch.
fn own_inputs(trainer: &Trainer) -> Vec<(&'static str, Tensor)> {
    let options = trainer.options();
    let step = trainer.steps();
    let scalars = options.optimiser.scalars(options.learning_rate.at(step), step + 1);
    let mut own = vec![(SCALARS, Tensor::f32([3], &scalars))];
    if trainer.program().compiled().graph.inputs().any(|(_, node)| node.name == DROPOUT_COUNTER) {
        own.push((DROPOUT_COUNTER, counter(options.seed, step)));
    }
    own
}

/// Seed and step, as dropout takes them.
pub fn counter(seed: u64, step: u64) -> Tensor {
    let bytes = [seed as u32, (seed >> 32) as u32, step as u32].into_iter().flat_map(u32::to_le_bytes).collect();
    Tensor::from_bytes(TensorType::new(DType::U32, [3]), bytes)
}

impl<'a> InFlight<'a> {
    fn run(&self) -> &Run<'a> {
        match self {
            InFlight::Run(run) => run,
            InFlight::Steps(steps) => steps.run(),
        }
    }

    fn wait(self) -> Result<(), Box<dyn Error>> {
        match self {
            InFlight::Run(run) => drop(run.wait()?),
            InFlight::Steps(steps) => drop(steps.wait()?),
        }
        Ok(())
    }
}

/// Of milliseconds.
fn of_ms(values: &[f64]) -> Stats {
    stats(values.iter().map(|ms| (ms * 1e6).round() as u64)).unwrap_or_default()
}

fn median(values: &[f64]) -> f64 {
    of_ms(values).median / 1e6
}
