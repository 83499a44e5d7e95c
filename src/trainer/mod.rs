//! In: a forward graph with a loss, parameters and options; out: a [`Trainer`], whose every step, forward, backward and
//! update, is one submit. Knows every stage: it stands beside the session.
//!
//! Weights, moments and whatever else a step leaves for the next stay on the device. What the host gives to a step is
//! its batch, its learning rate and its random counter, so that [`Trainer::run_steps`] puts many steps in one submit.

mod checkpoint;
mod report;

pub use report::{StepReport, Steps};

use crate::caps::DeviceCaps;
use crate::error::Error;
use crate::graph::{DROPOUT_COUNTER, DType, Graph, Shape, Storage, TensorType};
use crate::lift::{LiftLimits, lift_within};
use crate::model::ParamSource;
use crate::session::{CompileOptions, Compiled, Mode, Program, Session, check_part, compile, known, lift_limits};
use crate::tensor::Tensor;
use crate::trace::Frame;
use crate::train::{Precision, SCALARS, TrainOptions, freeze_others, training_step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Decides everything about the training of a graph without a device: lifts, differentiates, appends the optimiser,
/// and then does what [`compile`] does.
///
/// # Errors
/// If the graph cannot be trained as asked or a node cannot run within the caps.
pub fn compile_training(
    forward: &Graph,
    train: &TrainOptions,
    caps: &DeviceCaps,
    options: &CompileOptions,
) -> Result<Compiled, Error> {
    forward.verify()?;
    let (train, caps) = (&freeze_others(forward, train), &caps.usable());
    let (graph, mut report) = match options.mode == Mode::Fused && options.lift {
        true => lift_within(forward, &training_lift_limits(train, caps))?,
        false => (forward.clone(), Default::default()),
    };
    let step = training_step(&graph, train)?;
    // what the backward pass reads is no longer written as lift knows it
    let mut compiled = compile(&step, caps, &CompileOptions { lift: false, ..options.clone() })?;
    report.extend(std::mem::take(&mut compiled.report));
    compiled.report = report;
    Ok(compiled)
}

/// As for a forward pass, but for what a stack keeps for the backward pass: while one is walked backwards, as much again
/// is alive of its gradients.
fn training_lift_limits(train: &TrainOptions, caps: &DeviceCaps) -> LiftLimits {
    // the graph that is lifted is in f32 yet
    let narrowing = match train.precision {
        Precision::F32 => 1,
        Precision::F16(_) => 2,
    };
    let limits = lift_limits(caps);
    LiftLimits {
        stack_bytes: narrowing * STACK_BYTES,
        linear_bytes: limits.linear_bytes.saturating_mul(narrowing),
        bound_bytes: limits.bound_bytes.saturating_mul(narrowing),
        // weights and moments are states in f32, one buffer each
        packed_bytes: limits.linear_bytes,
        ..limits
    }
}

/// Bytes of activations that a stack keeps.
const STACK_BYTES: usize = 32 << 20;

/// Trains a model on a device. Every step overwrites the gradients of the one before: nothing adds up between steps
/// but weights, moments and counters.
///
/// ```
/// use kiln::model::{Dnn, DnnConfig, Init, Loss, init};
/// use kiln::train::{Optimiser, Schedule, TrainOptions};
/// use kiln::{AdapterChoice, CompileOptions, Error, Session, Tensor};
///
/// fn main() -> Result<(), Error> {
///     let model = Dnn::new(DnnConfig { in_size: 4, width: 16, depth: 2, out_size: 3 });
///     let forward = model.build_training(8, Loss::CrossEntropy)?;
///     let params = init(&forward.layout, Init::Default, 0)?;
///     let session = match Session::open_blocking(&AdapterChoice::Best) {
///         Ok(session) => session,
///         Err(error) => return Ok(println!("skipped: {error}")),
///     };
///     let options = TrainOptions { learning_rate: Schedule::constant(1e-2), ..TrainOptions::default() };
///     let trainer = session.trainer(&forward, &params, &options, &CompileOptions::default())?;
///     let input = Tensor::f32([8, 4], &[0.5; 32]);
///     let targets = Tensor::i32([8], &[0, 1, 2, 0, 0, 0, 0, 0]);
///     let first = trainer.step(&[("input", &input), ("targets", &targets)])?;
///     // nine steps, one submit
///     let more = trainer.run_steps(&[[("input", &input), ("targets", &targets)]; 9])?;
///     assert!(more[8].loss < first.loss);
///     let evaluate = trainer.inference(&model.build(8)?, &CompileOptions::default())?;
///     assert_eq!(evaluate.run(&[("input", &input)])?["output"].shape().dims(), [8, 3]);
///     Ok(())
/// }
/// ```
pub struct Trainer {
    session: Session,
    program: Program,
    options: TrainOptions,
    /// These with what the loss is not made of frozen.
    training: TrainOptions,
    /// Held while steps are submitted, so that their numbers follow each other on the device.
    progress: Mutex<Progress>,
}

/// What the host knows of a training.
struct Progress {
    /// Steps submitted so far.
    steps: u64,
    /// Seed of dropout.
    seed: u64,
    /// Parameters that no step changes.
    frozen: BTreeMap<String, Tensor>,
}

impl Session {
    /// Makes a trainer of a forward graph that has a scalar output "loss": everything that does not change from step
    /// to step happens here.
    ///
    /// # Errors
    /// If the graph cannot be trained as asked, a node cannot run within the device's limits, a parameter is missing,
    /// of another shape or no float where one is wanted, or the device fails.
    pub fn trainer(
        &self,
        forward: &Graph,
        params: &dyn ParamSource,
        train: &TrainOptions,
        options: &CompileOptions,
    ) -> Result<Trainer, Error> {
        let options = &self.with_preloaded(options);
        let compiled = self.tuned(compile_training(forward, train, &self.limits(options), options)?, options)?;
        let program = self.load(compiled, params, options)?;
        // in every mode those of the graph as written, also what its loss is not made of
        let states = storages(&program.compiled().graph).filter(|(trained, _)| *trained);
        let states: BTreeSet<&str> = states.flat_map(|(_, s)| &s.parts).map(|part| part.name.as_str()).collect();
        let mut frozen = BTreeMap::new();
        for (_, storage) in storages(forward) {
            for part in storage.parts.iter().filter(|part| !states.contains(part.name.as_str())) {
                check_part(part, storage.dtype, &forward.layout, params)?;
                if let Some(value) = params.get(&part.name) {
                    frozen.insert(part.name.clone(), value.into_owned());
                }
            }
        }
        let progress = Mutex::new(Progress { steps: 0, seed: train.seed, frozen });
        Ok(Trainer {
            session: self.clone(),
            program,
            options: train.clone(),
            training: freeze_others(forward, train),
            progress,
        })
    }
}

/// The storages that a graph reads, and whether each is trained; copies apart.
fn storages(graph: &Graph) -> impl Iterator<Item = (bool, &Storage)> {
    let all = graph.parameters().map(|(storage, node)| (graph.is_state(node), graph.layout.get(storage)));
    all.filter(|(_, storage)| storage.copy_of.is_none())
}

impl Trainer {
    /// The program of a step.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// How it trains.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// Steps done or in flight since the beginning of the training, also before a checkpoint that was loaded.
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Trains on one batch, waiting on this thread. `inputs` are those of the forward graph, with a leading dimension
    /// for micro-batches if there are several; a counter of dropout is the trainer's own to give.
    ///
    /// # Errors
    /// If inputs do not fit, see [`Program::submit`]; if the loss is not a finite number, unless
    /// [`TrainOptions::skip_non_finite`] is set; if the device fails.
    pub fn step(&self, inputs: &[(&str, &Tensor)]) -> Result<StepReport, Error> {
        let reports = self.submit_all(&[inputs])?.wait()?;
        Ok(reports.into_iter().next().expect("each batch gives a report"))
    }

    /// Trains on each batch in turn, all in one submit, waiting on this thread: every step has a learning rate and
    /// random numbers of its own, and gives the same numbers as it would alone. Losses are read back at the end.
    ///
    /// # Errors
    /// See [`Trainer::step`]; the error names the first step whose loss is not finite.
    pub fn run_steps<'i>(&self, batches: &[impl AsRef<[(&'i str, &'i Tensor)]>]) -> Result<Vec<StepReport>, Error> {
        self.submit_all(batches)?.wait()
    }

    /// As [`Trainer::run_steps`], but returns at once; several may be in flight.
    ///
    /// # Errors
    /// If inputs do not fit, see [`Program::submit`]; if the device fails.
    pub fn submit_all<'i>(&self, batches: &[impl AsRef<[(&'i str, &'i Tensor)]>]) -> Result<Steps<'_>, Error> {
        let mut progress = self.lock();
        let numbers = progress.steps..progress.steps + batches.len() as u64;
        let own: Vec<Vec<(&str, Tensor)>> = numbers.clone().map(|n| self.own_inputs(n, progress.seed)).collect();
        let runs = batches.iter().zip(&own).map(|(batch, own)| self.with_own(batch.as_ref(), own));
        let runs = runs.collect::<Result<Vec<_>, Error>>()?;
        let run = self.program.submit_all(&runs).map_err(|error| self.of_batch(error))?;
        progress.steps = numbers.end;
        let rates = numbers.map(|n| (n, self.options.learning_rate.at(n))).collect();
        Ok(Steps::new(run, rates, self.options.skip_non_finite))
    }

    /// As [`Trainer::step`], with timestamps: gives the step's times too, to be added to [`Program::describe`].
    ///
    /// # Errors
    /// See [`Trainer::step`].
    pub fn profile(&self, inputs: &[(&str, &Tensor)]) -> Result<(StepReport, Frame), Error> {
        let mut progress = self.lock();
        let step = progress.steps;
        let own = self.own_inputs(step, progress.seed);
        let inputs = self.with_own(inputs, &own)?;
        let (outputs, frame) = self.program.profile(&inputs).map_err(|error| self.of_batch(error))?;
        progress.steps = step + 1;
        let rates = vec![(step, self.options.learning_rate.at(step))];
        let reports = report::reports(rates, self.options.skip_non_finite, vec![outputs])?;
        Ok((reports.into_iter().next().expect("each batch gives a report"), frame))
    }

    /// A batch with what the trainer gives beside it.
    fn with_own<'i>(
        &self,
        batch: &[(&'i str, &'i Tensor)],
        own: &'i [(&'static str, Tensor)],
    ) -> Result<Vec<(&'i str, &'i Tensor)>, Error> {
        if let Some((name, _)) = batch.iter().find(|(name, _)| own.iter().any(|(n, _)| n == name)) {
            let (kind, what) = ("input", "is the trainer's own to give");
            return Err(Error::Name { kind, name: (*name).into(), what, known: self.known_inputs() });
        }
        Ok(batch.iter().copied().chain(own.iter().map(|(n, t)| (*n, t))).collect())
    }

    /// The program's error about an input, in words of what is given to a step.
    fn of_batch(&self, error: Error) -> Error {
        let micro_batches = self.options.micro_batches;
        match error {
            Error::Name { kind: "input", name, what, .. } => {
                Error::Name { kind: "input", name, what, known: self.known_inputs() }
            }
            Error::InputType { kind: "input", name, expected, got }
                if micro_batches > 1
                    && expected.dtype == got.dtype
                    && expected.shape.rank() == got.shape.rank() + 1 =>
            {
                Error::MicroBatches { name, micro_batches, expected, got }
            }
            other => other,
        }
    }

    /// The inputs that are given to a step.
    fn known_inputs(&self) -> String {
        let own = self.own_inputs(0, 0);
        let inputs = self.program.compiled().recording.inputs.iter();
        known(inputs.filter(|i| own.iter().all(|(name, _)| *name != i.port.name)))
    }

    /// What the trainer gives to a step beside its batch.
    fn own_inputs(&self, step: u64, seed: u64) -> Vec<(&'static str, Tensor)> {
        let mut own = Vec::new();
        for input in &self.program.compiled().recording.inputs {
            let shape = &input.port.ty.shape;
            if input.port.name == SCALARS {
                let scalars = self.options.optimiser.scalars(self.options.learning_rate.at(step), step + 1);
                own.push((SCALARS, Tensor::f32(shape.clone(), &scalars)));
            } else if input.port.name == DROPOUT_COUNTER {
                own.push((DROPOUT_COUNTER, counters(step, seed, shape)));
            }
        }
        own
    }

    /// The parameters' values after the last submitted step, by the names that checkpoints give them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn parameters(&self) -> Result<BTreeMap<String, Tensor>, Error> {
        // held, so that all are of one step
        let progress = self.lock();
        let mut all = progress.frozen.clone();
        for (_, storage) in storages(&self.program.compiled().graph).filter(|(trained, _)| *trained) {
            let whole = self.program.read_state(&storage.name)?;
            all.extend(split(storage, "", &whole));
        }
        Ok(all)
    }

    /// A program that runs another graph over the same parameters with their present values: the model's forward pass
    /// without loss and dropout, to evaluate it. [`Trainer::refresh`] brings it up to date later.
    ///
    /// # Errors
    /// See [`Session::compile`].
    pub fn inference(&self, graph: &Graph, options: &CompileOptions) -> Result<Program, Error> {
        self.session.compile(graph, &self.parameters()?, options)
    }

    /// Gives a program of [`Trainer::inference`] the parameters' present values. Nothing is compiled.
    ///
    /// # Errors
    /// If the program reads parameters that the trainer does not have; if the device fails.
    pub fn refresh(&self, program: &Program) -> Result<(), Error> {
        program.write_parameters(&self.parameters()?)
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seed and number of each micro-batch of a step: (3), or (n, 3).
fn counters(step: u64, seed: u64, shape: &Shape) -> Tensor {
    let micro_batches = (shape.elements() / 3) as u64;
    let number = |i| step.wrapping_mul(micro_batches).wrapping_add(i) as u32;
    let words = (0..micro_batches).flat_map(|i| [seed as u32, (seed >> 32) as u32, number(i)]);
    let bytes = words.flat_map(u32::to_le_bytes).collect();
    Tensor::from_bytes(TensorType::new(DType::U32, shape.clone()), bytes)
}

/// The parts of a storage's value, each under its own name behind `prefix`.
fn split(storage: &Storage, prefix: &str, whole: &Tensor) -> Vec<(String, Tensor)> {
    let size = storage.dtype.size();
    let part = |part: &crate::graph::Part| {
        let bytes = whole.bytes()[part.offset * size..][..part.shape.elements() * size].to_vec();
        (
            format!("{prefix}{}", part.name),
            Tensor::from_bytes(TensorType::new(storage.dtype, part.shape.clone()), bytes),
        )
    };
    storage.parts.iter().map(part).collect()
}
