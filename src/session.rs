//! In: a graph, its parameters and options; out: a [`Program`] on a device, then the results of its runs. Reads top to
//! bottom as the way of the data: lift, fuse, select, plan, record, gpu, trace.

mod compiled;
mod describe;
mod device_tensor;
mod tuned;
mod weights;

pub(crate) use compiled::lift_limits;
pub use compiled::{Compiled, compile};
pub use device_tensor::DeviceTensor;

use crate::cache::CacheDir;
use crate::caps::{DeviceCaps, MatmulPrecision};
use crate::debug::{level, show};
use crate::error::Error;
use crate::fuse::FuseReport;
use crate::gpu::{
    AdapterChoice, AdapterInfo, Executable, ExecutableOptions, Finished, Gpu, Host, Pending, Profiling, Submission,
};
use crate::graph::{DType, Graph, TensorType};
use crate::kernel::Choices;
use crate::model::ParamSource;
use crate::plan::MemoryPlan;
use crate::record::{BufferId, BufferPort};
use crate::select::{Overlap, Weight};
use crate::tensor::Tensor;
use crate::trace::{Clock, Frame, HostSpan, Trace};
use crate::tune::{CompileMode, TuneOptions};
use std::collections::BTreeMap;
use std::slice::from_ref;
use std::time::Instant;
pub(crate) use weights::check_part;
use weights::{check, contents, contents_ahead};

/// How a graph is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// As written: one dispatch an op, one submit a dispatch, none waited for.
    Eager,
    /// As written, in one submit.
    Recorded,
    /// Lifted and fused, in one submit.
    #[default]
    Fused,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Eager => "eager",
            Mode::Recorded => "recorded",
            Mode::Fused => "fused",
        })
    }
}

/// What [`Session::compile`] does.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// How the graph is run.
    pub mode: Mode,
    /// In [`Mode::Fused`]: whether composite ops are found.
    pub lift: bool,
    /// In [`Mode::Fused`]: whether ops are fused.
    pub fuse: bool,
    /// How exact products of f32 operands are. Where the device has no f16 matrix units, a product would bind too many
    /// buffers or an operand exceeds a binding, it is [`MatmulPrecision::Highest`] whatever was asked for, and the report
    /// says so. Products of fewer than 16 rows, columns or inner elements always are, without a word, but for
    /// those in attention.
    pub precision: MatmulPrecision,
    /// Whether temporaries share memory.
    pub alias: bool,
    /// Whether naga's run-time checks are compiled into kernels.
    pub checked: bool,
    /// Whether memory that the program has not written is NaN at first: a read of it shows in the results.
    pub poison: bool,
    /// Limits to stay within, tighter than the device's own.
    pub limits: Option<DeviceCaps>,
    /// Whether kernels take their parameters as immediates, where the device has room for them, instead of from a
    /// uniform buffer. Which is faster to encode depends on the driver: `cargo bench --bench encode` times both.
    pub immediates: bool,
    /// Most dispatches of a command buffer, where one for the whole run would take longer than the operating system
    /// lets a device be busy (two seconds on Windows), at least 1; `None` puts all in one. [`Mode::Eager`] puts one in
    /// each.
    pub max_dispatches_per_submit: Option<usize>,
    /// Which launches may run side by side in [`Mode::Fused`].
    pub overlap: Overlap,
    /// How runs are timed that are asked to be.
    pub profiling: Profiling,
    /// Configurations of kernels that go before what their models choose.
    pub choices: Choices,
    /// Whether configurations are measured.
    pub compile_mode: CompileMode,
    /// How long and how widely they are measured.
    pub tune: TuneOptions,
    /// Where compiled pipelines and measured configurations are kept.
    pub cache: CacheDir,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            mode: Mode::Fused,
            lift: true,
            fuse: true,
            precision: MatmulPrecision::Highest,
            alias: true,
            checked: false,
            poison: false,
            limits: None,
            immediates: false,
            max_dispatches_per_submit: None,
            overlap: Overlap::default(),
            profiling: Profiling::default(),
            choices: Choices::default(),
            compile_mode: CompileMode::Default,
            tune: TuneOptions::default(),
            cache: CacheDir::User,
        }
    }
}

impl CompileOptions {
    /// The defaults in another mode.
    pub fn mode(mode: Mode) -> Self {
        CompileOptions { mode, ..Self::default() }
    }
}

/// An open device that programs are compiled for. Clones share it.
#[derive(Clone)]
pub struct Session {
    gpu: Gpu,
    kept: tuned::Kept,
}

impl Session {
    /// Opens an adapter.
    ///
    /// # Errors
    /// If there is none, or none of that name: the error lists what was found.
    pub async fn open(choice: &AdapterChoice) -> Result<Session, Error> {
        Ok(Session { gpu: Gpu::open(choice).await?, kept: tuned::Kept::default() })
    }

    /// [`Session::open`], waiting on this thread.
    ///
    /// # Errors
    /// See [`Session::open`].
    pub fn open_blocking(choice: &AdapterChoice) -> Result<Session, Error> {
        pollster::block_on(Session::open(choice))
    }

    /// The adapter in words.
    pub fn adapter(&self) -> &AdapterInfo {
        self.gpu.info()
    }

    /// The device's limits and features.
    pub fn caps(&self) -> &DeviceCaps {
        self.gpu.caps()
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Makes a program of a graph: everything that does not change from run to run happens here.
    ///
    /// # Errors
    /// If an option cannot be so, a node cannot run within the device's limits, a parameter is missing, of another shape
    /// or no float where one is wanted, or the device fails.
    pub fn compile(&self, graph: &Graph, params: &dyn ParamSource, options: &CompileOptions) -> Result<Program, Error> {
        let options = &self.with_preloaded(options);
        let compiled = self.tuned(compile(graph, &self.limits(options), options)?, options)?;
        self.load(compiled, params, options)
    }

    /// The device's limits, or tighter ones.
    pub(crate) fn limits(&self, options: &CompileOptions) -> DeviceCaps {
        let caps = options.limits.as_ref().map_or(self.caps().clone(), |l| self.caps().within(l));
        if options.immediates { caps } else { DeviceCaps { immediate_bytes: 0, ..caps } }
    }

    /// Makes what was decided, with its parameters.
    pub(crate) fn load(
        &self,
        mut compiled: Compiled,
        params: &dyn ParamSource,
        options: &CompileOptions,
    ) -> Result<Program, Error> {
        let (checked, poison, timestamps) = (options.checked, options.poison, self.limits(options).timestamps);
        let clock = Clock::start(true);
        compiled.show();
        let executable_options = ExecutableOptions { checked, poison, timestamps };
        let made_at = clock.ns();
        // a parameter that is trained starts as it is given, any other state is zero
        self.open_pipelines(options);
        let executable = std::thread::scope(|scope| {
            let contents = contents_ahead(scope, &compiled, params);
            Executable::new(&self.gpu, compiled.recording.clone(), executable_options, contents)
        })?;
        self.save_pipelines(options);
        self.pipeline_warnings().into_iter().for_each(|words| compiled.report.add("cache", words));
        tracing::debug!(mode = %options.mode, dispatches = compiled.recording.dispatches.len(), bytes = compiled.plan.total(), "compiled");
        let split = if options.mode == Mode::Eager { Some(1) } else { options.max_dispatches_per_submit };
        let zero = compiled.zero;
        let made = executable.made().iter().map(|s| s.clone().later(made_at));
        let after = clock.zero().saturating_duration_since(zero).as_nanos() as u64;
        let spans = compiled.stages.iter().cloned().chain(made.map(|s| s.later(after))).collect();
        Ok(Program { executable, compiled, mode: options.mode, options: options.clone(), split, zero, spans })
    }
}

/// A graph on a device, ready to run.
pub struct Program {
    executable: Executable,
    compiled: Compiled,
    mode: Mode,
    options: CompileOptions,
    split: Option<usize>,
    zero: Instant,
    spans: Vec<HostSpan>,
}

/// The results of a run by output name.
pub type Outputs = BTreeMap<String, Tensor>;

impl Program {
    /// What was decided when it was compiled.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// What was lifted and fused, in words.
    pub fn report(&self) -> &FuseReport {
        &self.compiled.report
    }

    /// Where tensors live.
    pub fn plan(&self) -> &MemoryPlan {
        &self.compiled.plan
    }

    /// How it is run.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Dispatches of a run.
    pub fn dispatches(&self) -> usize {
        self.compiled.recording.dispatches.len()
    }

    /// Starts a run and returns at once; several may be in flight, and each keeps its own results.
    ///
    /// # Errors
    /// If inputs are missing, unknown, given twice, of another type or index past an end; if the device fails.
    pub fn submit(&self, inputs: &[(&str, &Tensor)]) -> Result<Run<'_>, Error> {
        self.start(&[inputs], Submission { split: self.split, profile: None, read: true })
    }

    /// Starts runs that follow each other in one submit and returns at once: states go from each to the next, and each
    /// has its own inputs and outputs. All inputs are uploaded at once and all outputs read back at the end.
    ///
    /// # Errors
    /// See [`Program::submit`].
    pub fn submit_all<'i>(&self, runs: &[impl AsRef<[(&'i str, &'i Tensor)]>]) -> Result<Run<'_>, Error> {
        self.start(runs, Submission { split: self.split, profile: None, read: true })
    }

    /// As [`Program::submit`], but outputs stay on the device and are not given back: for measuring, and for programs
    /// whose results are state.
    ///
    /// # Errors
    /// See [`Program::submit`].
    pub fn submit_unread(&self, inputs: &[(&str, &Tensor)]) -> Result<Run<'_>, Error> {
        self.start(&[inputs], Submission { split: self.split, profile: None, read: false })
    }

    /// As [`Program::submit_unread`] with timestamps, for [`Run::wait_profiled`].
    ///
    /// # Errors
    /// See [`Program::submit`].
    pub fn submit_profiled(&self, inputs: &[(&str, &Tensor)], how: Profiling) -> Result<Run<'_>, Error> {
        self.start(&[inputs], Submission { split: self.split, profile: Some(how), read: false })
    }

    /// Runs once, waiting on this thread.
    ///
    /// # Errors
    /// See [`Program::submit`].
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, Error> {
        self.submit(inputs)?.wait()
    }

    /// Runs once with timestamps. The trace holds this run and all that is known of the program.
    ///
    /// # Errors
    /// See [`Program::submit`].
    pub fn trace(&self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Trace), Error> {
        let (outputs, frame) = self.profile(inputs)?;
        Ok((outputs, Trace { frames: vec![frame], ..self.describe() }))
    }

    /// Runs once with timestamps and gives this run's times alone, to be added to [`Program::describe`].
    ///
    /// # Errors
    /// See [`Program::submit`].
    pub fn profile(&self, inputs: &[(&str, &Tensor)]) -> Result<(Outputs, Frame), Error> {
        self.start(&[inputs], Submission { split: self.split, profile: Some(self.options.profiling), read: true })?
            .wait_profiled()
    }

    /// Gives every parameter a new value ahead of the next run: no run, of another thread either, has some of them.
    ///
    /// # Errors
    /// If a parameter is missing, of another shape or no float where one is wanted: then none has changed. If the device
    /// fails.
    pub fn write_parameters(&self, params: &dyn ParamSource) -> Result<(), Error> {
        check(&self.compiled, params)?;
        self.executable.write_all(contents(&self.compiled, params))
    }

    /// The names of its states: what stays on the device between runs, trained parameters under their storages' names.
    pub fn states(&self) -> impl Iterator<Item = &str> {
        self.executable.recording().states.iter().map(|s| s.port.name.as_str())
    }

    /// The type of a state.
    ///
    /// # Errors
    /// If there is no such state.
    pub fn state_type(&self, name: &str) -> Result<&TensorType, Error> {
        Ok(&find("state", &self.executable.recording().states, name)?.port.ty)
    }

    /// Sets a state, and the copy in another type that a training in f16 keeps of a parameter.
    ///
    /// # Errors
    /// If there is no such state or its type differs.
    pub fn write_state(&self, name: &str, value: &Tensor) -> Result<(), Error> {
        let state = self.state_of(name, value.ty())?;
        self.executable.write(state.buffer, state.offset, value.bytes())?;
        for (buffer, offset, dtype) in self.copies(name) {
            self.executable.write(buffer, offset, value.cast(dtype).bytes())?;
        }
        Ok(())
    }

    /// Where copies of a trained parameter lie, and their types.
    fn copies(&self, state: &str) -> impl Iterator<Item = (BufferId, u64, DType)> {
        let Compiled { graph, selected, recording, .. } = &self.compiled;
        let copy = move |(weight, &(buffer, offset)): (&Weight, &(BufferId, u64))| {
            let storage = graph.layout.get(weight.storage);
            let of = graph.layout.get(storage.copy_of?);
            (of.name == state).then_some((buffer, offset, storage.dtype))
        };
        selected.weights.iter().zip(&recording.weights).filter_map(copy)
    }

    /// A state that is to take a value of this type.
    fn state_of(&self, name: &str, value: &TensorType) -> Result<&BufferPort, Error> {
        let state = find("state", &self.executable.recording().states, name)?;
        if state.port.ty != *value {
            let (name, expected, got) = (name.into(), state.port.ty.clone(), value.clone());
            return Err(Error::InputType { kind: "state", name, expected, got });
        }
        Ok(state)
    }

    /// Reads a state as the last submitted run leaves it.
    ///
    /// # Errors
    /// If there is no such state; if the device fails.
    pub fn read_state(&self, name: &str) -> Result<Tensor, Error> {
        let state = find("state", &self.executable.recording().states, name)?;
        let bytes = self.executable.read(state.buffer, state.offset, state.port.ty.bytes())?;
        Ok(Tensor::from_bytes(state.port.ty.clone(), bytes))
    }

    fn start<'i>(&self, runs: &[impl AsRef<[(&'i str, &'i Tensor)]>], how: Submission) -> Result<Run<'_>, Error> {
        let begin = Instant::now();
        let ports = &self.executable.recording().inputs;
        let bytes = runs.iter().map(|inputs| checked_inputs(ports, inputs.as_ref()));
        let bytes = bytes.collect::<Result<Vec<_>, Error>>()?;
        let profile = how.profile.or((level() >= 4).then_some(self.options.profiling));
        let how = Submission { profile, ..how };
        let pending = self.executable.submit(&bytes, how)?;
        Ok(Run { program: self, pending, begin })
    }
}

fn find<'a>(kind: &'static str, ports: &'a [BufferPort], name: &str) -> Result<&'a BufferPort, Error> {
    ports.iter().find(|p| p.port.name == name).ok_or_else(|| unknown(kind, "does not exist", ports, name))
}

fn unknown(kind: &'static str, what: &'static str, ports: &[BufferPort], name: &str) -> Error {
    Error::Name { kind, name: name.into(), what, known: known(ports.iter()) }
}

/// The names and types there are, as [`Error::Name`] shows them.
pub(crate) fn known<'a>(ports: impl Iterator<Item = &'a BufferPort>) -> String {
    let known: Vec<String> = ports.map(|p| format!("{} {}", p.port.name, p.port.ty)).collect();
    if known.is_empty() { "none".into() } else { known.join(", ") }
}

/// The bytes of each input of a run.
fn checked_inputs<'a>(ports: &[BufferPort], inputs: &[(&str, &'a Tensor)]) -> Result<Vec<&'a [u8]>, Error> {
    for (i, (name, _)) in inputs.iter().enumerate() {
        find("input", ports, name)?;
        if inputs[..i].iter().any(|(before, _)| before == name) {
            return Err(unknown("input", "is given twice", ports, name));
        }
    }
    ports.iter().map(|port| checked_input(port, inputs, ports)).collect()
}

/// The bytes of an input, once its type and what it indexes are checked.
fn checked_input<'a>(
    port: &BufferPort,
    inputs: &[(&str, &'a Tensor)],
    ports: &[BufferPort],
) -> Result<&'a [u8], Error> {
    let name = &port.port.name;
    let Some((_, tensor)) = inputs.iter().find(|(n, _)| n == name) else {
        return Err(unknown("input", "is missing", ports, name));
    };
    if *tensor.ty() != port.port.ty {
        let (name, expected, got) = (name.clone(), port.port.ty.clone(), tensor.ty().clone());
        return Err(Error::InputType { kind: "input", name, expected, got });
    }
    for bound in &port.port.bounds {
        let signed = tensor.dtype() == DType::I32;
        let all = 0..tensor.shape().elements();
        for element in bound.elements.as_deref().unwrap_or(from_ref(&all)).iter().cloned().flatten() {
            let word = &tensor.bytes()[element * 4..][..4];
            let word = [word[0], word[1], word[2], word[3]];
            let value = if signed { i64::from(i32::from_le_bytes(word)) } else { i64::from(u32::from_le_bytes(word)) };
            if !bound.allows(value) {
                return Err(Error::Index { name: name.clone(), element, value, bound: bound.clone() });
            }
        }
    }
    Ok(tensor.bytes())
}

/// Programs go from thread to thread, also where they are built for a browser.
const _: fn() = || {
    fn goes<T: Send + Sync>() {}
    goes::<Program>();
};

/// A run in flight, or several that follow each other in one submit.
pub struct Run<'a> {
    program: &'a Program,
    pending: Pending<'a>,
    begin: Instant,
}

impl Run<'_> {
    /// Nanoseconds that the host took to record dispatches and copies and to finish the command buffers.
    pub fn encode_ns(&self) -> u64 {
        self.pending.host.encode_ns
    }

    /// Nanoseconds that the host took beside [`Run::encode_ns`], to upload inputs and submit.
    pub fn submit_ns(&self) -> u64 {
        self.pending.host.submit_ns
    }

    /// Nanoseconds that the host took in all, [`Run::encode_ns`] and [`Run::submit_ns`].
    pub fn host_ns(&self) -> u64 {
        self.encode_ns() + self.submit_ns()
    }

    /// Command buffers submitted.
    pub fn submits(&self) -> u64 {
        self.pending.host.submits
    }

    /// An output that was declared kept; of several runs in one submit it is the last one's. Its data are the run's own,
    /// whatever runs follow.
    ///
    /// # Errors
    /// If there is no such output, it is not kept, or the run gives nothing back.
    pub fn kept(&self, name: &str) -> Result<DeviceTensor, Error> {
        let ports = &self.program.executable.recording().outputs;
        let port = find("output", ports, name)?;
        let position = ports.iter().position(|p| p.port.name == name);
        let kept = position.and_then(|i| self.pending.kept(i));
        let why = match port.port.keep {
            true => "was not kept by this run, which gives nothing back",
            false => "is not kept on the device",
        };
        let kept = kept.ok_or_else(|| unknown("output", why, ports, name))?;
        Ok(DeviceTensor::new(kept, port.port.ty.clone()))
    }

    /// Waits on this thread. Of several runs in one submit it gives the last one's outputs.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait(self) -> Result<Outputs, Error> {
        Ok(self.wait_all()?.pop().unwrap_or_default())
    }

    /// Waits on this thread for the outputs of each run.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait_all(self) -> Result<Vec<Outputs>, Error> {
        let (program, times) = (self.program, self.times());
        Ok(program.results(self.pending.wait()?, times))
    }

    /// [`Run::wait`] without blocking the caller's thread.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn finish(self) -> Result<Outputs, Error> {
        Ok(self.finish_all().await?.pop().unwrap_or_default())
    }

    /// [`Run::wait_all`] without blocking the caller's thread.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn finish_all(self) -> Result<Vec<Outputs>, Error> {
        let (program, times) = (self.program, self.times());
        Ok(program.results(self.pending.finish().await?, times))
    }

    /// Waits on this thread for a run's outputs and times, which it has if it was started with timestamps.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait_profiled(self) -> Result<(Outputs, Frame), Error> {
        let (program, times) = (self.program, self.times());
        let finished = self.pending.wait()?;
        let frame = program.frames_of(&finished, &times).pop().unwrap_or_default();
        show(4, "timings", || Box::new(Trace { frames: vec![frame.clone()], ..program.describe() }));
        Ok((program.outputs(finished).pop().unwrap_or_default(), frame))
    }

    fn times(&self) -> RunTimes {
        RunTimes { host: self.pending.host, begin: self.begin, zero: self.pending.zero() }
    }
}

/// What is known of a run before it ends.
struct RunTimes {
    host: Host,
    /// When it was called for.
    begin: Instant,
    /// The zero of the executable's spans.
    zero: Instant,
}

impl Program {
    fn results(&self, finished: Finished, times: RunTimes) -> Vec<Outputs> {
        let trace = || Box::new(Trace { frames: self.frames_of(&finished, &times), ..self.describe() }) as _;
        match finished.outputs.len() {
            0 | 1 => show(4, "timings", trace),
            n => show(4, format_args!("timings of {n} runs in one submit; encode and wall are of all of them"), trace),
        }
        self.outputs(finished)
    }

    fn outputs(&self, finished: Finished) -> Vec<Outputs> {
        let ports = &self.executable.recording().outputs;
        finished.outputs.into_iter().map(|run| outputs(ports, run)).collect()
    }
}

fn outputs(ports: &[BufferPort], bytes: Vec<Vec<u8>>) -> Outputs {
    let tensor = |(p, b): (&BufferPort, Vec<u8>)| {
        // an empty tensor has no bytes to tell it from a kept one
        (!p.port.keep && (!b.is_empty() || p.port.ty.bytes() == 0))
            .then(|| (p.port.name.clone(), Tensor::from_bytes(p.port.ty.clone(), b)))
    };
    ports.iter().zip(bytes).filter_map(tensor).collect()
}
